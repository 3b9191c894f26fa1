//! Slots of bytes, packed without holes, which hold the entries of a shard.
//!
//! An allocation per entry would cost a header, rounding and a pointer of two words. Here slots of one size share pages.
//! When a slot is removed, the last slot of its size is moved into it. So each size has at most one page that is partly
//! empty, an empty page goes back to the allocator, and the byte accounting is exact. The price is that removing a slot may
//! move another one, and the owner of its handle must update it. The arena does not interpret the bytes.

/// Bytes of a page. Allocators hand out this size without rounding, and it is small enough that partly empty pages do not
/// matter.
pub(super) const PAGE_BYTES: usize = 4096;
/// Slot sizes are multiples of this many bytes.
const SLOT_STEP: usize = 8;
/// Smallest slot in bytes: [`SLOT_BITS`] can number all slots of this size in a page. No entry is this small.
const SLOT_BYTES_MIN: usize = PAGE_BYTES >> SLOT_BITS;
/// Slots up to this size have a multiple of [`SLOT_STEP`] bytes. A larger slot has a half, a third or so on of a page, or whole pages.
const STEPPED_BYTES_MAX: usize = PAGE_BYTES / 8;
const STEPPED_MAX: usize = STEPPED_BYTES_MAX / SLOT_STEP;
/// Bytes that a page costs beside its contents: its elements in two vectors that may just have doubled, and the allocator's
/// header.
pub(super) const PAGE_OVERHEAD: usize = 2 * (size_of::<ArenaPage>() + 2 * size_of::<u32>()) + 16;

/// Bits of a handle that number the slot within its page.
const SLOT_BITS: u32 = 8;
/// Bits of a handle. The remaining bit of the 32 lets a timing wheel mark links that are not handles.
const HANDLE_BITS: u32 = 31;
/// Maximum number of bytes of pages that handles can address: 32 GiB.
pub(super) const ARENA_BYTES_MAX: usize = PAGE_BYTES << (HANDLE_BITS - SLOT_BITS);

/// Identifies a slot until it is removed or moved. Below 2^31.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle(pub(super) u32);

/// The slots of one shard.
#[derive(Default)]
pub(super) struct Arena {
    pages: Vec<ArenaPage>,
    /// Indices in `pages` whose pages were given back. New pages take these first.
    vacant: Vec<u32>,
    /// Indexed by [`class_of`].
    classes: Vec<Class>,
    bytes: usize,
}

#[derive(Default)]
struct ArenaPage {
    bytes: Box<[u8]>,
    class: u32,
    slot_bytes: u32,
}

/// The slots of one size.
#[derive(Default)]
struct Class {
    /// Indices of its pages. All are full but the last.
    pages: Vec<u32>,
    /// Number of slots in use in the last page; never 0 while there is a page.
    taken: usize,
}

impl Handle {
    fn new(page: u32, slot: usize) -> Self {
        Self(
            page << SLOT_BITS
                | u32::from(u8::try_from(slot).expect("a page has at most 256 slots")),
        )
    }

    fn page(self) -> usize {
        (self.0 >> SLOT_BITS) as usize
    }

    fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

impl Arena {
    /// Bytes taken from the allocator.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that adding contents of `bytes` would take from the allocator.
    pub(super) fn growth_bytes(&self, bytes: usize) -> usize {
        let class = class_of(bytes);
        match self.classes.get(class) {
            Some(found) if !found.pages.is_empty() && found.taken < slots_per_page(class) => 0,
            _ => page_bytes(class) + PAGE_OVERHEAD,
        }
    }

    /// Copies the contents into a free slot. The rest of the slot is zero.
    pub(super) fn add(&mut self, contents: &[u8]) -> Handle {
        let index = class_of(contents.len());
        if self.classes.len() <= index {
            self.classes.resize_with(index + 1, Class::default);
        }
        if self.classes[index].pages.is_empty()
            || self.classes[index].taken == slots_per_page(index)
        {
            let page = self.add_page(index);
            self.classes[index].pages.push(page);
            self.classes[index].taken = 0;
        }
        let class = &mut self.classes[index];
        let handle = Handle::new(class.pages[class.pages.len() - 1], class.taken);
        class.taken += 1;
        self.replace(handle, contents);
        handle
    }

    /// Whether this slot has the size that contents of `bytes` would be given.
    pub(super) fn suits(&self, handle: Handle, bytes: usize) -> bool {
        self.pages[handle.page()].class as usize == class_of(bytes)
    }

    /// Replaces the contents of a slot, which must be large enough.
    pub(super) fn replace(&mut self, handle: Handle, contents: &[u8]) {
        let (used, rest) = self.get_mut(handle).split_at_mut(contents.len());
        used.copy_from_slice(contents);
        rest.fill(0);
    }

    /// The whole slot: its contents, then zeros.
    pub(super) fn get(&self, handle: Handle) -> &[u8] {
        let page = &self.pages[handle.page()];
        let start = handle.slot() * page.slot_bytes as usize;
        &page.bytes[start..start + page.slot_bytes as usize]
    }

    /// As [`Self::get`].
    pub(super) fn get_mut(&mut self, handle: Handle) -> &mut [u8] {
        let page = &mut self.pages[handle.page()];
        let start = handle.slot() * page.slot_bytes as usize;
        &mut page.bytes[start..start + page.slot_bytes as usize]
    }

    /// Removes a slot. If another slot was moved to `handle` to fill it, returns the old handle of that slot.
    pub(super) fn remove(&mut self, handle: Handle) -> Option<Handle> {
        let index = self.pages[handle.page()].class as usize;
        let class = &mut self.classes[index];
        let page = class.pages[class.pages.len() - 1];
        class.taken -= 1;
        let last = Handle::new(page, class.taken);
        if class.taken == 0 {
            class.pages.pop();
            class.taken = if class.pages.is_empty() {
                0
            } else {
                slots_per_page(index)
            };
        }
        let moved = (last != handle).then_some(last);
        if moved.is_some() {
            self.copy(last, handle);
        }
        if last.slot() == 0 {
            self.remove_page(page);
        }
        moved
    }

    /// Copies the contents of a slot to another one of the same size.
    fn copy(&mut self, from: Handle, to: Handle) {
        let size = self.get(from).len();
        let start = from.slot() * self.get(from).len();
        if from.page() == to.page() {
            self.pages[from.page()]
                .bytes
                .copy_within(start..start + size, to.slot() * size);
        } else {
            let bytes = std::mem::take(&mut self.pages[from.page()].bytes);
            self.get_mut(to)
                .copy_from_slice(&bytes[start..start + size]);
            self.pages[from.page()].bytes = bytes;
        }
    }

    fn add_page(&mut self, class: usize) -> u32 {
        self.bytes += page_bytes(class) + PAGE_OVERHEAD;
        let page = ArenaPage {
            bytes: vec![0; page_bytes(class)].into_boxed_slice(),
            class: to_u32(class),
            slot_bytes: to_u32(slot_bytes(class)),
        };
        match self.vacant.pop() {
            Some(index) => {
                self.pages[index as usize] = page;
                index
            }
            None => {
                self.pages.push(page);
                to_u32(self.pages.len() - 1)
            }
        }
    }

    fn remove_page(&mut self, index: u32) {
        let page = std::mem::take(&mut self.pages[index as usize]);
        self.bytes -= page_bytes(page.class as usize) + PAGE_OVERHEAD;
        self.vacant.push(index);
    }
}

/// Converts the number of a page or of bytes. The shard keeps its arena within [`ARENA_BYTES_MAX`].
fn to_u32(number: usize) -> u32 {
    u32::try_from(number).expect("an arena is bounded in bytes")
}

/// The class of the slot for contents of `bytes`. Each slot size is a class: multiples of [`SLOT_STEP`], then a seventh to the
/// whole of a page, then multiples of a page.
fn class_of(bytes: usize) -> usize {
    let rounded = bytes.max(SLOT_BYTES_MIN).next_multiple_of(SLOT_STEP);
    if rounded <= STEPPED_BYTES_MAX {
        rounded / SLOT_STEP
    } else if rounded <= PAGE_BYTES {
        STEPPED_MAX + PAGE_BYTES / STEPPED_BYTES_MAX - PAGE_BYTES / rounded
    } else {
        STEPPED_MAX + PAGE_BYTES / STEPPED_BYTES_MAX - 2 + rounded.div_ceil(PAGE_BYTES)
    }
}

/// Bytes of a slot of this class: the inverse of [`class_of`].
fn slot_bytes(class: usize) -> usize {
    let beyond = class.saturating_sub(STEPPED_MAX);
    let fractions = PAGE_BYTES / STEPPED_BYTES_MAX;
    if beyond == 0 {
        class * SLOT_STEP
    } else if beyond < fractions {
        PAGE_BYTES / (fractions - beyond) / SLOT_STEP * SLOT_STEP
    } else {
        (beyond + 2 - fractions) * PAGE_BYTES
    }
}

fn slots_per_page(class: usize) -> usize {
    page_bytes(class) / slot_bytes(class)
}

fn page_bytes(class: usize) -> usize {
    slot_bytes(class).max(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_large_enough_and_wastes_little() {
        for bytes in 1..40_000 {
            let class = class_of(bytes);
            let slot = slot_bytes(class_of(bytes));
            assert!(
                slot >= bytes && slot.is_multiple_of(SLOT_STEP),
                "{bytes} bytes in {slot}"
            );
            assert!(slots_per_page(class) <= 1 << SLOT_BITS);
            assert_eq!(class_of(slot), class, "{bytes} bytes in {slot}");
            if (SLOT_BYTES_MIN..=STEPPED_BYTES_MAX).contains(&bytes) {
                assert!(slot < bytes + SLOT_STEP);
            }
        }
    }

    /// Compares the arena with a list of the expected contents, for slot sizes of every kind.
    #[test]
    fn contents_stay_as_slots_come_and_go_and_every_page_is_given_back() {
        let mut arena = Arena::default();
        let mut held: Vec<(Handle, Vec<u8>)> = Vec::new();
        let mut seed = 1_u64;
        for step in 0..40_000_u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = (seed >> 33) as usize;
            let grows = if step < 20_000 {
                random % 8 < 5
            } else {
                random % 8 < 3
            };
            if grows {
                let bytes = [61, 61, 62, 90, 500, 700, 5_000][random / 8 % 7];
                let contents = vec![step as u8 | 1; bytes];
                let before = arena.bytes();
                let growth = arena.growth_bytes(bytes);
                held.push((arena.add(&contents), contents));
                assert_eq!(arena.bytes(), before + growth);
            } else if !held.is_empty() {
                let (handle, _) = held.swap_remove(random / 8 % held.len());
                if let Some(moved) = arena.remove(handle) {
                    held.iter_mut()
                        .find(|(other, _)| *other == moved)
                        .unwrap()
                        .0 = handle;
                }
            }
            if step % 1_000 == 0 {
                for (handle, contents) in &held {
                    let (used, rest) = arena.get(*handle).split_at(contents.len());
                    assert!(used == contents && rest.iter().all(|byte| *byte == 0));
                }
            }
        }
        while let Some((handle, _)) = held.pop() {
            if let Some(moved) = arena.remove(handle) {
                held.iter_mut()
                    .find(|(other, _)| *other == moved)
                    .unwrap()
                    .0 = handle;
            }
        }
        assert_eq!(arena.bytes(), 0);
    }
}
