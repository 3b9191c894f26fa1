//! The documents are held to the program: links, examples and reference tables.

mod examples;
mod interface;
mod markdown;
mod names;
mod reference;
mod style;

pub use reference::algorithms;
