//! How the documents read: links that lead somewhere, tables and sentences that are not too long.

use super::markdown::{page, pages, root};

const README_LINES_MAX: usize = 160;
const ROW_LETTERS_MAX: usize = 160;
const SENTENCE_WORDS_MAX: usize = 25;

/// Each link's text and target.
fn links_of(text: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = text.split("](").collect();
    parts
        .windows(2)
        .map(|pair| {
            (
                pair[0].rsplit('[').next().unwrap(),
                pair[1].split(')').next().unwrap(),
            )
        })
        .collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_are_there() {
    let mut links = 0;
    for document in pages() {
        let folder = root().join(&document.path).parent().unwrap().to_owned();
        let plain = document.plain().join("\n");
        for (text, link) in links_of(&plain) {
            if link.contains("://") {
                continue;
            }
            links += 1;
            let named = !text.ends_with(".rs")
                || link.ends_with(&format!("/{}", text.trim_start_matches("../")))
                || link == text;
            assert!(named, "{} calls {link} {text}", document.path);
            let (path, heading) = link
                .split_once('#')
                .map_or((link, None), |(path, heading)| (path, Some(heading)));
            let target = if path.is_empty() {
                root().join(&document.path)
            } else {
                folder.join(path)
            };
            assert!(
                target.exists(),
                "{} links to {link}, and there is no such file",
                document.path
            );
            if let Some(heading) = heading {
                let target = target.canonicalize().unwrap();
                let name = target
                    .strip_prefix(root().canonicalize().unwrap())
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                let found = page(&name).anchors().iter().any(|anchor| anchor == heading);
                assert!(
                    found,
                    "{} links to {link}, and there is no such heading",
                    document.path
                );
            }
        }
    }
    assert!(links > 60, "only {links} links were found");
}

#[test]
fn every_page_of_the_manual_is_linked_from_the_readme() {
    let readme = page("README.md");
    for document in pages().iter().filter(|page| page.path != "README.md") {
        assert!(
            readme.text.contains(&format!("]({}", document.path)),
            "README.md does not link to {}",
            document.path
        );
    }
}

#[test]
fn the_readme_is_short() {
    let lines = page("README.md").text.lines().count();
    assert!(
        lines <= README_LINES_MAX,
        "README.md has {lines} lines; move what is a detail to docs/"
    );
}

#[test]
fn no_row_of_a_table_is_longer_than_a_screen_is_wide() {
    for document in pages() {
        for row in document
            .plain()
            .into_iter()
            .filter(|line| line.starts_with('|'))
        {
            let letters = row.chars().count();
            assert!(
                letters <= ROW_LETTERS_MAX,
                "{}: {letters} letters: {row}",
                document.path
            );
        }
    }
}

/// Changes are told in one line each, which may be a long one.
#[test]
fn no_sentence_has_more_than_25_words() {
    let mut sentences = 0;
    let long: Vec<String> = pages()
        .iter()
        .filter(|page| page.path != "CHANGELOG.md")
        .flat_map(|page| {
            page.sentences()
                .into_iter()
                .map(|sentence| (page.path.clone(), sentence))
        })
        .inspect(|_| sentences += 1)
        .map(|(path, sentence)| (path, sentence.split_whitespace().count(), sentence))
        .filter(|(_, words, _)| *words > SENTENCE_WORDS_MAX)
        .map(|(path, words, sentence)| format!("{path}: {words} words: {sentence}"))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
    assert!(sentences > 300, "only {sentences} sentences were found");
}
