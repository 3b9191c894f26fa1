//! The documents are held to the program: links, examples and reference tables.

mod examples;
mod grpcurl;
mod holds;
mod interface;
mod markdown;
mod names;
mod quickstart;
mod reference;
mod style;

pub use markdown::console_commands;
pub use reference::{algorithms, known_fields};

/// The blocks of code of a document, each with its info and its text.
pub fn page_blocks(path: &str) -> Vec<(String, String)> {
    markdown::page(path)
        .blocks()
        .into_iter()
        .map(|block| (block.info, block.text))
        .collect()
}

/// The rows of a document's tables whose first heading is this, as their cells.
pub fn table(path: &str, heading: &str) -> Vec<Vec<String>> {
    markdown::page(path).rows(heading)
}
