//! The token that admin calls carry. It is read from its file for each call, so that another one counts at once and none is
//! kept in memory; and compared in constant time, so that answers do not tell how much of a guess was right.

use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;

use crate::small_file::{self, ReadError};

/// Fewest bytes of a token: 128 bits, if they are random.
pub const TOKEN_BYTES_MIN: usize = 16;
/// Most bytes of a token's file: a token travels in a header of every call.
const FILE_BYTES_MAX: usize = 4096;

/// Where the token is.
#[derive(Debug, Clone)]
pub struct TokenFile(PathBuf);

/// A token. Has no `Debug`, so that none gets into a log or a message by accident.
struct Token(Vec<u8>);

impl TokenFile {
    /// The token in this file, which may end in white space.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Checks that there is a token. Errors: a sentence that says what is wrong with the file.
    pub fn check(&self) -> Result<(), String> {
        self.read().map(drop)
    }

    /// Whether `offered` is the token that the file holds now. Errors: see [`Self::check`]; then nobody is let in.
    pub(super) fn admits(&self, offered: &[u8]) -> Result<bool, String> {
        Ok(self.read()?.0.ct_eq(offered).into())
    }

    fn read(&self) -> Result<Token, String> {
        let wrong = |what: &str| format!("the file of listen.admin_token_file {what}");
        let length = || wrong(&format!("must hold {TOKEN_BYTES_MIN} to {FILE_BYTES_MAX} bytes; try: openssl rand -hex 32"));
        let contents = small_file::read(&self.0, FILE_BYTES_MAX).map_err(|error| match error {
            ReadError::TooLarge(_) => length(),
            error => wrong(&error.to_string()),
        })?;
        let token = contents.bytes.trim_ascii();
        if token.len() < TOKEN_BYTES_MIN {
            return Err(length());
        }
        // A header could not carry it, and so nobody could ever be let in.
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(wrong("must hold letters, digits and signs of ASCII alone; try: openssl rand -hex 32"));
        }
        Ok(Token(token.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_what_the_file_holds_now() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let file = TokenFile::new(&path);
        assert!(file.check().unwrap_err().contains("cannot be read: No such file"));
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        assert_eq!(file.admits(b"0123456789abcdef"), Ok(true));
        for wrong in ["", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0", "0123456789abcdef\n"] {
            assert_eq!(file.admits(wrong.as_bytes()), Ok(false), "{wrong:?}");
        }
        std::fs::write(&path, "another token of 28 bytes...".replace(' ', "_")).unwrap();
        assert_eq!(file.admits(b"0123456789abcdef"), Ok(false));
        assert_eq!(file.admits(b"another_token_of_28_bytes..."), Ok(true));
    }

    #[test]
    fn a_file_that_is_no_token_lets_nobody_in_and_is_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let long = "x".repeat(5_000);
        for text in ["", "\n", "0123456789abcde\n", "0123456789 abcdef", "0123456789äbcdef", &long] {
            std::fs::write(&path, text).unwrap();
            let sentence = TokenFile::new(&path).admits(text.trim().as_bytes()).unwrap_err();
            assert!(sentence.contains("must hold") && !sentence.contains("0123456789"), "{sentence}");
        }
    }
}
