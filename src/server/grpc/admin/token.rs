//! The token that admin calls carry.
//!
//! It is read from its file for each call, so a new token counts at once and none is kept in memory. It is compared in
//! constant time, so answers do not reveal how much of a guess was right.

use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;

use tollgate_store::small_file::{self, ReadError};

/// Fewest bytes of a token: 128 bits, if they are random.
pub const TOKEN_BYTES_MIN: usize = 16;
/// Maximum number of bytes of a token's file. The token travels in a header of every call.
const FILE_BYTES_MAX: usize = 4096;

/// The path of the token's file.
#[derive(Debug, Clone)]
pub struct TokenFile(PathBuf);

/// A token. It has no `Debug`, so that it cannot get into a log or a message by accident.
struct Token(Vec<u8>);

impl TokenFile {
    /// Uses the token in the file at `path`, which may end in white space.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Checks that the file holds a valid token. Errors: a sentence that says what is wrong with the file.
    pub fn check(&self) -> Result<(), String> {
        self.read().map(drop)
    }

    /// Whether the value of an `authorization` field has the word Bearer and the token that the file holds now. The file is read
    /// on another thread, since a file system may hang. Errors: see [`Self::check`]; the call must then be refused.
    pub(crate) async fn admits_bearer(&self, authorization: &[u8]) -> Result<bool, String> {
        let file = self.clone();
        let offered = bearer(authorization).to_vec();
        let admitted = tokio::task::spawn_blocking(move || file.admits(&offered)).await;
        admitted.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Whether `offered` is the token that the file holds now. Errors: see [`Self::check`]; the call must then be refused.
    fn admits(&self, offered: &[u8]) -> Result<bool, String> {
        Ok(self.read()?.0.ct_eq(offered).into())
    }

    fn read(&self) -> Result<Token, String> {
        let describe = |what: &str| format!("the file of listen.admin_token_file {what}");
        let length = || {
            describe(&format!(
                "must hold {TOKEN_BYTES_MIN} to {FILE_BYTES_MAX} bytes; try: openssl rand -hex 32"
            ))
        };
        let contents = small_file::read(&self.0, FILE_BYTES_MAX).map_err(|error| match error {
            ReadError::TooLarge(_) => length(),
            error => describe(&error.to_string()),
        })?;
        let token = contents.bytes.trim_ascii();
        if token.len() < TOKEN_BYTES_MIN {
            return Err(length());
        }
        // A header could not carry it, so no call could ever succeed.
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(describe(
                "must hold ASCII letters, digits and signs only; try: openssl rand -hex 32",
            ));
        }
        Ok(Token(token.to_vec()))
    }
}

/// Returns what follows the word Bearer, in any case; empty if the word is missing.
fn bearer(authorization: &[u8]) -> &[u8] {
    const SCHEME: &[u8] = b"bearer ";
    match authorization.split_at_checked(SCHEME.len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => token,
        _ => b"",
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
        assert!(
            file.check()
                .unwrap_err()
                .contains("cannot be read: No such file")
        );
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        assert_eq!(file.admits(b"0123456789abcdef"), Ok(true));
        for wrong in [
            "",
            "0123456789abcde",
            "0123456789abcdeF",
            "0123456789abcdef0",
            "0123456789abcdef\n",
        ] {
            assert_eq!(file.admits(wrong.as_bytes()), Ok(false), "{wrong:?}");
        }
        std::fs::write(&path, "another token of 28 bytes...".replace(' ', "_")).unwrap();
        assert_eq!(file.admits(b"0123456789abcdef"), Ok(false));
        assert_eq!(file.admits(b"another_token_of_28_bytes..."), Ok(true));
    }

    #[test]
    fn a_file_without_a_valid_token_admits_no_call_and_is_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let long = "x".repeat(5_000);
        for text in [
            "",
            "\n",
            "0123456789abcde\n",
            "0123456789 abcdef",
            "0123456789äbcdef",
            &long,
        ] {
            std::fs::write(&path, text).unwrap();
            let sentence = TokenFile::new(&path)
                .admits(text.trim().as_bytes())
                .unwrap_err();
            assert!(
                sentence.contains("must hold") && !sentence.contains("0123456789"),
                "{sentence}"
            );
        }
    }
}
