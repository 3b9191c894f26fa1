//! Reads the documents of the repository: their blocks of code, tables, headings and prose.

use std::path::{Path, PathBuf};

/// One document.
pub(super) struct Page {
    /// Path from the root of the repository, such as `docs/redis.md`.
    pub path: String,
    pub text: String,
}

/// A block of code between fences.
pub(super) struct Block {
    /// What follows the opening fence, such as `yaml fragment`.
    pub info: String,
    pub text: String,
}

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

pub(super) fn page(path: &str) -> Page {
    let text = std::fs::read_to_string(root().join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    Page {
        path: path.to_owned(),
        text,
    }
}

/// Every document.
pub(super) fn pages() -> Vec<Page> {
    let mut paths: Vec<String> = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "examples/README.md",
    ]
    .map(str::to_owned)
    .to_vec();
    for folder in ["docs", "docs/migrate", "docs/operations"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            paths.extend(name.ends_with(".md").then(|| format!("{folder}/{name}")));
        }
    }
    paths.iter().map(|path| page(path)).collect()
}

impl Page {
    /// Each line, and whether it belongs to a block of code. Fences do.
    fn lines(&self) -> impl Iterator<Item = (&str, bool)> {
        let mut within = false;
        self.text.lines().map(move |line| {
            let fence = line.starts_with("```");
            within ^= fence;
            (line, within || fence)
        })
    }

    pub(super) fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut within = false;
        for line in self.text.lines() {
            match line.strip_prefix("```") {
                Some(info) if !within => blocks.push(Block {
                    info: info.to_owned(),
                    text: String::new(),
                }),
                None if within => blocks.last_mut().unwrap().text += &format!("{line}\n"),
                _ => {}
            }
            within ^= line.starts_with("```");
        }
        assert!(!within, "{}: a fence is not closed", self.path);
        blocks
    }

    /// Blocks whose info is this.
    pub(super) fn blocks_of(&self, info: &str) -> Vec<Block> {
        self.blocks()
            .into_iter()
            .filter(|block| block.info == info)
            .collect()
    }

    /// Everything but blocks of code.
    pub(super) fn plain(&self) -> Vec<&str> {
        self.lines()
            .filter(|(_, code)| !code)
            .map(|(line, _)| line)
            .collect()
    }

    /// Rows of all tables whose first heading is this, as their cells.
    pub(super) fn rows(&self, heading: &str) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let mut wanted = false;
        for line in self.plain() {
            if !line.starts_with('|') {
                wanted = false;
                continue;
            }
            let cells: Vec<String> = line
                .trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().to_owned())
                .collect();
            if cells[0] == heading {
                wanted = true;
            } else if wanted && !cells[0].starts_with("--") {
                rows.push(cells);
            }
        }
        assert!(
            !rows.is_empty(),
            "{} has no table that begins with {heading}",
            self.path
        );
        rows
    }

    /// Names that a link can point to, as GitHub makes them of headings.
    pub(super) fn anchors(&self) -> Vec<String> {
        let headings = self
            .plain()
            .into_iter()
            .filter_map(|line| line.strip_prefix('#'));
        headings
            .map(|heading| anchor(heading.trim_start_matches('#').trim()))
            .collect()
    }

    /// Sentences of prose, with links as their text and code as one word. Headings, tables and code are left out.
    pub(super) fn sentences(&self) -> Vec<String> {
        let mut paragraphs = vec![String::new()];
        for (line, code) in self.lines() {
            let line = line.trim_start();
            let ends = code || line.is_empty() || line.starts_with(['#', '|', '!']);
            let item = line.starts_with("- ")
                || line
                    .split_once(". ")
                    .is_some_and(|(number, _)| number.parse::<u8>().is_ok());
            if ends || item {
                paragraphs.push(String::new());
            }
            if !ends {
                let words = line.strip_prefix("- ").unwrap_or(line);
                *paragraphs.last_mut().unwrap() += &format!("{words} ");
            }
        }
        paragraphs
            .iter()
            .flat_map(|paragraph| split(&words_of(paragraph)))
            .collect()
    }
}

fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Code as one word, and links without their targets.
fn words_of(paragraph: &str) -> String {
    let coded = paragraph
        .split('`')
        .enumerate()
        .map(|(index, part)| if index % 2 == 1 { "code" } else { part });
    let mut text = coded.collect::<String>();
    while let Some((before, rest)) = text.split_once("](") {
        let after = rest.split_once(')').map_or("", |(_, after)| after);
        text = format!("{}{after}", before);
    }
    text.replace(['[', '*'], "")
}

fn split(text: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut sentence = String::new();
    for word in text.split_whitespace() {
        sentence += &format!("{word} ");
        if word.ends_with(['.', '!', '?', ':']) {
            sentences.push(std::mem::take(&mut sentence));
        }
    }
    sentences.push(sentence);
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// Words of a command as a shell splits them: quotes, and a backslash at a line's end.
pub(super) fn shell_words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut begun = false;
    for letter in command.replace("\\\n", " ").chars() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => (quote, begun) = (Some(letter), true),
            (None, letter) if letter.is_whitespace() => {
                if begun || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            (_, letter) => word.push(letter),
        }
    }
    if begun || !word.is_empty() {
        words.push(word);
    }
    words
}

/// Commands of a console block as they are written, each with what it printed. A comment after a command is left out.
fn written_commands(block: &Block) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for line in block.text.lines() {
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => found.push((command.to_owned(), String::new())),
            (None, Some((command, _))) if command.ends_with('\\') => {
                *command += &format!("\n{line}")
            }
            (None, Some((_, output))) => *output += &format!("{line}\n"),
            (None, None) => panic!("a console block begins without a command: {line}"),
        }
    }
    found
        .into_iter()
        .map(|(command, output)| (command.split(" # ").next().unwrap().to_owned(), output))
        .collect()
}

/// The same as words.
pub(super) fn commands(block: &Block) -> Vec<(Vec<String>, String)> {
    written_commands(block)
        .into_iter()
        .map(|(command, output)| (shell_words(&command), output))
        .collect()
}

/// All commands of a document, for a shell, each with what it printed.
pub(super) fn console_commands_with_output(path: &str) -> Vec<(String, String)> {
    page(path)
        .blocks_of("console")
        .iter()
        .flat_map(written_commands)
        .collect()
}

/// All commands of a document, for a shell.
pub fn console_commands(path: &str) -> Vec<String> {
    console_commands_with_output(path)
        .into_iter()
        .map(|(command, _)| command)
        .collect()
}
