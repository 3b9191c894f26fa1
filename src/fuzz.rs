//! The macro that all fuzz targets share. Only tests use it.

/// Runs a fuzz target: `fuzz!(CORPUS, INPUT, CHECK)`. First it checks all files of `tests/corpora/CORPUS/corpus` and `crashes`,
/// without a time limit. Then it checks generated inputs for one second, or for `BOLERO_RANDOM_TEST_TIME_MS`. A test built for
/// libFuzzer checks libFuzzer's inputs.
macro_rules! fuzz {
    ($corpus:literal, $input:ty, $check:expr) => {{
        let check = $check;
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/corpora/", $corpus);
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
