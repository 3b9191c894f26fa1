//! The macro that all fuzz targets share. Only tests use it.

/// Runs a fuzz target: `fuzz!(CORPUS, INPUT, CHECK)`. First it checks all files of `tests/corpora/CORPUS/corpus` and `crashes`,
/// without a time limit. Then it checks generated inputs for one second, or for `BOLERO_RANDOM_TEST_TIME_MS`. A test built for
/// libFuzzer checks libFuzzer's inputs.
macro_rules! fuzz {
    ($corpus:literal, $input:ty, $check:expr) => {{
        let check = $check;
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpora/", $corpus);
        let mut files =
            std::fs::read_dir(std::path::Path::new(folder).join("corpus")).expect(folder);
        assert!(files.next().is_some(), "{folder} has no corpus");
        // Zero generated inputs, which also removes the time limit.
        bolero::check!(name = folder)
            .with_iterations(0)
            .with_type::<$input>()
            .for_each(|input| check(input));
        bolero::check!(name = folder)
            .with_type::<$input>()
            .for_each(|input| check(input));
    }};
}

pub(crate) use fuzz;

/// One edit: where it begins, which word it puts there, and how many bytes it replaces, each modulo what there is.
pub(crate) type Edit = (u16, u8, u8);

/// The text with parts replaced by words. An edit within a character of several bytes is left out.
pub(crate) fn edited(text: &str, edits: &[Edit], words: &[&str]) -> String {
    let mut text = text.to_owned();
    for (start, word, cut) in edits {
        let start = usize::from(*start) % (text.len() + 1);
        let end = (start + usize::from(*cut % 16)).min(text.len());
        if text.is_char_boundary(start) && text.is_char_boundary(end) {
            text.replace_range(start..end, words[usize::from(*word) % words.len()]);
        }
    }
    text
}
