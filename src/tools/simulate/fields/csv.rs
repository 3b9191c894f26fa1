//! Lines of comma-separated values. The first line names the fields.

use csv_core::{ReadRecordResult, Reader};

use super::Values;

/// Maximum number of fields of a line.
const FIELDS_MAX: usize = 256;

/// The names of the fields.
#[derive(Debug)]
pub(super) struct Csv {
    names: Vec<String>,
}

impl Csv {
    /// Errors: a sentence, for a header that names no fields.
    pub(super) fn new(header: &[u8]) -> Result<Self, String> {
        let mut text = vec![0; header.len()];
        let mut ends = [0; FIELDS_MAX];
        let header = header.strip_prefix("\u{feff}".as_bytes()).unwrap_or(header);
        let count = read(header, &mut text, &mut ends)
            .ok_or("the first line of the CSV does not name its fields")?;
        let names =
            ranges(&ends[..count]).map(|range| String::from_utf8_lossy(&text[range]).into_owned());
        let names: Vec<String> = names.collect();
        match names
            .iter()
            .enumerate()
            .find(|(index, name)| names[..*index].contains(name))
        {
            Some((_, twice)) => Err(format!("the first line of the CSV names {twice:?} twice")),
            None => Ok(Self { names }),
        }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    pub(super) fn cut(&self, line: &[u8], values: &mut Values) -> Result<(), &'static str> {
        let mut ends = [0; FIELDS_MAX];
        values.text.resize(line.len(), 0);
        let count = read(line, &mut values.text, &mut ends)
            .ok_or("it is not a line of CSV; a quote may not be closed")?;
        if count != self.names.len() {
            return Err("it has another number of fields than the first line");
        }
        for (place, range) in values.places.iter_mut().zip(ranges(&ends[..count])) {
            *place = Some(range);
        }
        Ok(())
    }
}

/// Reads the one record of a line. Returns the number of its fields.
fn read(line: &[u8], text: &mut [u8], ends: &mut [usize]) -> Option<usize> {
    // The end of the line is given by hand: a quote that is still open then takes it, and the record does not end.
    let mut reader = Reader::new();
    let (result, read, written, count) = reader.read_record(line, text, ends);
    if result != ReadRecordResult::InputEmpty || read != line.len() {
        return None;
    }
    let (result, _, _, last) = reader.read_record(b"\n", &mut text[written..], &mut ends[count..]);
    (result == ReadRecordResult::Record).then_some(count + last)
}

fn ranges(ends: &[usize]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts
        .zip(ends.iter().copied())
        .map(|(start, end)| start..end)
}
