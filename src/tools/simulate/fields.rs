//! Formats of logs: how a line is cut into named fields.
//!
//! A format is compiled once for the fields that are wanted. A line is then cut without allocation: the values of a line of
//! text stay where they are, those of JSON and CSV are written unescaped into one buffer.

mod csv;
mod json;
mod layout;

use std::ops::Range;

use csv::Csv;
use layout::Layout;

pub(super) use layout::variable;

/// The format that Apache and nginx write by default.
const COMBINED: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;
/// The older one of Apache, without the last two.
const COMMON: &str =
    "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
/// Fields that are parts of the request line or its target.
const DERIVED: [(&str, &str, FieldPart); 6] = [
    ("request_method", "request", FieldPart::Method),
    ("request_uri", "request", FieldPart::Target),
    ("uri", "request", FieldPart::Path),
    ("args", "request", FieldPart::Query),
    ("uri", "request_uri", FieldPart::TargetPath),
    ("args", "request_uri", FieldPart::TargetQuery),
];

/// How the lines of a log are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// Text with variables, in the form of nginx's `log_format`.
    Layout(String),
    /// An object of JSON per line.
    Json,
    /// Values separated by commas; the first line names them.
    Csv,
}

impl Format {
    /// The format of this name, or of this `log_format`. Errors: a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "combined" => Ok(Self::Layout(COMBINED.to_owned())),
            "common" => Ok(Self::Layout(COMMON.to_owned())),
            "json" => Ok(Self::Json),
            "csv" => Ok(Self::Csv),
            text if text.contains('$') => Layout::new(text).map(|_| Self::Layout(text.to_owned())),
            text => Err(format!(
                "{text:?} is not a format; write combined, common, json, csv, or nginx's log_format with its variables, such as '$remote_addr [$time_local] \"$request\"'"
            )),
        }
    }
}

/// A part of another field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldPart {
    Whole,
    Method,
    Target,
    Path,
    Query,
    TargetPath,
    TargetQuery,
}

/// Values of the wanted fields of one line.
#[derive(Debug, Default)]
pub struct Values {
    /// Where unescaped values are written.
    text: Vec<u8>,
    /// Where each value is: in `text`, or in the line.
    places: Vec<Option<Range<usize>>>,
    is_in_line: bool,
}

/// A format, compiled for the fields that are wanted.
#[derive(Debug)]
pub struct Fields {
    cutter: Cutter,
    /// For each wanted field: the index of the field that it is cut from, and which part it is.
    wanted: Vec<(usize, FieldPart)>,
}

#[derive(Debug)]
enum Cutter {
    Layout(Layout),
    /// The names, with a dot between levels.
    Json(Vec<String>),
    Csv(Csv),
}

impl Fields {
    /// Compiles a format. `sample` has the first lines of the log: the fields of JSON and CSV are read from it.
    pub fn new(format: &Format, sample: &[&[u8]]) -> Result<Self, String> {
        let cutter = match format {
            Format::Layout(text) => Cutter::Layout(Layout::new(text)?),
            Format::Json => Cutter::Json(json::names(sample)),
            Format::Csv => Cutter::Csv(Csv::new(sample.first().copied().unwrap_or_default())?),
        };
        Ok(Self {
            cutter,
            wanted: Vec::new(),
        })
    }

    /// Whether the first line names the fields and is not a request.
    pub fn has_header(&self) -> bool {
        matches!(self.cutter, Cutter::Csv(_))
    }

    /// Names of all fields, parts of others included.
    pub fn names(&self) -> Vec<&str> {
        let own: Vec<&str> = self.own().iter().map(String::as_str).collect();
        let parts = DERIVED
            .iter()
            .filter(|(part, of, _)| own.contains(of) && !own.contains(part))
            .map(|(part, ..)| *part);
        let mut names: Vec<&str> = own.iter().copied().chain(parts).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn own(&self) -> &[String] {
        match &self.cutter {
            Cutter::Layout(layout) => layout.names(),
            Cutter::Json(names) => names,
            Cutter::Csv(csv) => csv.names(),
        }
    }

    /// Asks for a field by its name. Returns its index in [`Values`], or a sentence with the nearest name.
    pub fn want(&mut self, name: &str) -> Result<usize, String> {
        let own = |name: &str| self.own().iter().position(|own| own == name);
        let derived = || {
            DERIVED
                .iter()
                .filter(|(part, ..)| *part == name)
                .find_map(|(_, of, part)| Some((own(of)?, *part)))
        };
        let Some(found) = own(name)
            .map(|index| (index, FieldPart::Whole))
            .or_else(derived)
        else {
            return Err(self.unknown(name));
        };
        let index = self
            .wanted
            .iter()
            .position(|wanted| *wanted == found)
            .unwrap_or_else(|| {
                self.wanted.push(found);
                self.wanted.len() - 1
            });
        Ok(index)
    }

    fn unknown(&self, name: &str) -> String {
        /// Maximum number of names that are listed; a message is a sentence, not a page.
        const NAMES_MAX: usize = 30;
        let names = self.names();
        let nearest = names
            .iter()
            .map(|known| (strsim::osa_distance(known, name), known))
            .min();
        let nearest = nearest.filter(|(edits, _)| *edits <= 3 && 2 * *edits <= name.len());
        let list: Vec<String> = names
            .iter()
            .take(NAMES_MAX)
            .map(|name| format!("${name}"))
            .collect();
        match nearest {
            Some((_, nearest)) => {
                format!("${name} is not a field of this log; did you mean ${nearest}?")
            }
            None => format!(
                "${name} is not a field of this log; there are {}",
                list.join(", ")
            ),
        }
    }

    /// Cuts a line. Errors: why it is not of this format.
    pub fn cut(&self, line: &[u8], values: &mut Values) -> Result<(), &'static str> {
        values.text.clear();
        values.places.clear();
        values.places.resize(self.own().len(), None);
        values.is_in_line = matches!(self.cutter, Cutter::Layout(_));
        match &self.cutter {
            Cutter::Layout(layout) => layout.cut(line, &mut values.places),
            Cutter::Json(names) => json::cut(names, line, values),
            Cutter::Csv(csv) => csv.cut(line, values),
        }
    }

    /// The value of a wanted field; empty when the line has none.
    pub fn value<'a>(&self, index: usize, line: &'a [u8], values: &'a Values) -> &'a [u8] {
        let (own, part) = self.wanted[index];
        let text = if values.is_in_line {
            line
        } else {
            &values.text
        };
        let value = values.places[own]
            .clone()
            .and_then(|place| text.get(place))
            .unwrap_or_default();
        // Web servers write a dash for what was not there.
        if value == b"-" && values.is_in_line {
            b""
        } else {
            part.select(value)
        }
    }
}

impl FieldPart {
    fn select(self, value: &[u8]) -> &[u8] {
        let word = |index| {
            value
                .split(|byte| *byte == b' ')
                .nth(index)
                .unwrap_or_default()
        };
        let halves = |target: &'_ [u8]| memchr::memchr(b'?', target).unwrap_or(target.len());
        match self {
            Self::Whole => value,
            Self::Method => word(0),
            Self::Target => word(1),
            Self::Path => &word(1)[..halves(word(1))],
            Self::Query => word(1).get(halves(word(1)) + 1..).unwrap_or_default(),
            Self::TargetPath => &value[..halves(value)],
            Self::TargetQuery => value.get(halves(value) + 1..).unwrap_or_default(),
        }
    }
}

impl Values {
    /// Takes an unescaped value of the field with this index.
    fn put(&mut self, index: usize, value: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(value);
        self.places[index] = Some(start..self.text.len());
    }
}

#[cfg(test)]
mod tests;
