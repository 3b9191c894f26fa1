//! The page as it is sent, and the policy that lets a browser run its own style and script alone.

use axum::http::HeaderValue;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

/// The page.
pub(super) const TEXT: &str = include_str!("page.html");

/// What is sent with the page.
pub(super) struct StatusPage {
    /// The content security policy. It names style and script by their hashes, and lets the page ask nobody but its own server.
    pub policy: HeaderValue,
}

impl StatusPage {
    pub(super) fn new() -> Self {
        let style = hash_of("style");
        let script = hash_of("script");
        let policy = format!(
            "default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; img-src data:; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'"
        );
        // Letters of base64 and the words above. Should that ever fail, a browser runs nothing.
        Self {
            policy: HeaderValue::try_from(policy)
                .unwrap_or(HeaderValue::from_static("default-src 'none'")),
        }
    }
}

/// The hash of what is between the tags of this name, as the policy writes it.
fn hash_of(tag: &str) -> String {
    let inner = TEXT
        .split_once(&format!("<{tag}>"))
        .and_then(|(_, rest)| rest.split_once(&format!("</{tag}>")));
    let (inner, _) = inner.unwrap_or_default();
    format!(
        "sha256-{}",
        STANDARD.encode(digest(&SHA256, inner.as_bytes()))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum number of bytes of the page: it is sent whole to each viewer, once.
    const BYTES_MAX: usize = 40 << 10;

    #[test]
    fn the_page_is_one_small_file_that_names_no_other_and_runs_by_its_hashes() {
        let policy = StatusPage::new().policy;
        let policy = policy.to_str().unwrap();
        assert_eq!(policy.matches("'sha256-").count(), 2, "{policy}");
        assert!(
            policy.starts_with("default-src 'none';") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(
            (
                TEXT.matches("<style>").count(),
                TEXT.matches("<script>").count()
            ),
            (1, 1)
        );
        assert!(TEXT.len() <= BYTES_MAX, "{} bytes", TEXT.len());
        for word in [
            "http:",
            "https:",
            "//cdn",
            "src=",
            "@import",
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
        ] {
            assert!(!TEXT.contains(word), "the page has {word}");
        }
        // Handlers in attributes, and styles in them, are refused by the policy.
        for word in [
            " onclick=",
            " onload=",
            " onerror=",
            " onsubmit=",
            " style=",
        ] {
            assert!(!TEXT.contains(word), "the page has {word}");
        }
    }
}
