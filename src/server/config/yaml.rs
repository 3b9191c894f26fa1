//! Parses a YAML text to a tree of values, from the parser's events, one by one, within a budget.
//!
//! The `config` crate's own reader recurses as deep as a text nests, expands every alias, and loses lines and duplicate keys.
//! So a text of 8 KB could end the process. Here nothing recurses, and depth, values and bytes are counted before they are
//! stored. Scalars stay texts; the check of a field decides whether one is a number.

mod precheck;

use std::collections::HashMap;

use config::{Map, Value, ValueKind};
use yaml_rust2::parser::{Event, Parser};
use yaml_rust2::scanner::{Marker, ScanError, TScalarStyle};

use super::tree::{add, is_full, join, shown_key};
use super::{ConfigError, source::FILE_BYTES_MAX};
use precheck::check_text;

/// Deepest nesting; a config needs six levels.
const DEPTH_MAX: usize = 32;
/// Maximum number of values, names included. The largest valid config has 1,020,000 in its plans: 10,000 plans of eight limits
/// with all fields.
const VALUES_MAX: usize = 1_100_000;
/// Values that a text may have through its aliases, beyond four per byte. So a short text stays small, and plans can still
/// share a list of limits.
const VALUES_FREE: usize = 10_000;
/// The same in bytes of scalars and keys.
const BYTES_FREE: usize = 64 << 10;
/// The parser's error for brackets that are nested more than 255 deep.
const TOO_DEEP: &str = "recursion limit exceeded";

/// Parses one document. Values know their lines; see [`Value::origin`].
///
/// Errors: the text cannot be parsed, or all duplicate keys.
pub(super) fn parse(text: &str) -> Result<Value, Vec<ConfigError>> {
    check_text(text).map_err(|error| vec![error])?;
    // The parser is third-party code: if it panics, the text is refused like any other.
    let parsed = std::panic::catch_unwind(|| Loader::new(text).load());
    parsed.unwrap_or_else(|_| {
        Err(vec![error_at(
            None,
            "is not valid YAML: its parser gave up",
        )])
    })
}

/// The values and bytes of a value.
#[derive(Clone, Copy, Default)]
struct ValueSize {
    values: usize,
    bytes: usize,
}

impl ValueSize {
    fn for_scalar(text: &str) -> Self {
        Self {
            values: 1,
            bytes: text.len(),
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            values: self.values.saturating_add(other.values),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// A list or table that is not complete.
struct Open {
    kind: CollectionKind,
    line: usize,
    /// The parser's number for its anchor; 0 for none.
    anchor: usize,
    cost: ValueSize,
}

enum CollectionKind {
    List(Vec<Value>),
    /// With the key whose value comes next.
    Table(Map<String, Value>, Option<String>),
}

struct Loader<'a> {
    parser: Parser<std::str::Chars<'a>>,
    open: Vec<Open>,
    root: Option<Value>,
    anchors: HashMap<usize, (Value, ValueSize)>,
    /// The cost of everything made so far, including copies by aliases.
    spent: ValueSize,
    most: ValueSize,
    duplicates: Vec<ConfigError>,
}

/// An error that ends the parsing of a text.
type Fatal = Box<ConfigError>;

impl<'a> Loader<'a> {
    fn new(text: &'a str) -> Self {
        let most = ValueSize {
            values: text
                .len()
                .saturating_mul(4)
                .saturating_add(VALUES_FREE)
                .min(VALUES_MAX),
            bytes: text
                .len()
                .saturating_mul(4)
                .saturating_add(BYTES_FREE)
                .min(2 * FILE_BYTES_MAX),
        };
        Self {
            parser: Parser::new_from_str(text),
            open: Vec::new(),
            root: None,
            anchors: HashMap::new(),
            spent: ValueSize::default(),
            most,
            duplicates: Vec::new(),
        }
    }

    fn load(mut self) -> Result<Value, Vec<ConfigError>> {
        loop {
            let (event, mark) = self
                .parser
                .next_token()
                .map_err(|error| vec![unreadable(&error)])?;
            if event == Event::StreamEnd {
                break;
            }
            self.take(event, &mark).map_err(|fatal| vec![*fatal])?;
        }
        match self.root {
            Some(root) if self.duplicates.is_empty() => Ok(root),
            Some(_) => Err(self.duplicates),
            None => Ok(Value::new(None, ValueKind::Nil)),
        }
    }

    fn take(&mut self, event: Event, mark: &Marker) -> Result<(), Fatal> {
        let line = mark.line();
        match event {
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => fatal(line, "has a tag (!…); a config has none"),
            Event::Scalar(text, style, anchor, None) => self.scalar(text, style, anchor, line),
            Event::SequenceStart(anchor, None) => {
                self.begin(CollectionKind::List(Vec::new()), anchor, line)
            }
            Event::MappingStart(anchor, None) => {
                self.begin(CollectionKind::Table(Map::new(), None), anchor, line)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.alias(anchor, line),
            Event::DocumentStart if self.root.is_some() => {
                fatal(line, "begins a second document (---); a config is one")
            }
            Event::DocumentStart
            | Event::DocumentEnd
            | Event::StreamStart
            | Event::StreamEnd
            | Event::Nothing => Ok(()),
        }
    }

    fn begin(&mut self, kind: CollectionKind, anchor: usize, line: usize) -> Result<(), Fatal> {
        if self.wants_key() {
            return fatal(
                line,
                "has a list or a table in place of a name; a name is a text",
            );
        }
        if self.open.len() >= DEPTH_MAX {
            return fatal(line, &format!("is nested more than {DEPTH_MAX} deep"));
        }
        let cost = ValueSize {
            values: 1,
            bytes: 0,
        };
        self.spend(cost, line)?;
        self.open.push(Open {
            kind,
            line,
            anchor,
            cost,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fatal> {
        let Some(Open {
            kind,
            line,
            anchor,
            cost,
        }) = self.open.pop()
        else {
            return Ok(());
        };
        let kind = match kind {
            CollectionKind::List(values) => ValueKind::Array(values),
            CollectionKind::Table(fields, _) => ValueKind::Table(fields),
        };
        self.complete(value(kind, line), anchor, cost, line)
    }

    fn scalar(
        &mut self,
        text: String,
        style: TScalarStyle,
        anchor: usize,
        line: usize,
    ) -> Result<(), Fatal> {
        let cost = ValueSize::for_scalar(&text);
        self.spend(cost, line)?;
        if self.wants_key() {
            return self.key(text, line);
        }
        let kind = match text.as_str() {
            _ if style != TScalarStyle::Plain => ValueKind::String(text),
            "" | "~" | "null" => ValueKind::Nil,
            "true" => ValueKind::Boolean(true),
            "false" => ValueKind::Boolean(false),
            _ => ValueKind::String(text),
        };
        self.complete(value(kind, line), anchor, cost, line)
    }

    fn alias(&mut self, anchor: usize, line: usize) -> Result<(), Fatal> {
        if self.wants_key() {
            return fatal(line, "has an alias (*…) in place of a name; write the name");
        }
        let Some(cost) = self.anchors.get(&anchor).map(|(_, cost)| *cost) else {
            return fatal(line, "has an alias (*…) of what it stands in itself");
        };
        self.spend(cost, line)?;
        // It exists, and its cost was counted.
        let Some((value, _)) = self.anchors.get(&anchor).cloned() else {
            return Ok(());
        };
        self.complete(value, 0, cost, line)
    }

    /// Stores a complete value in its table or list.
    fn complete(
        &mut self,
        value: Value,
        anchor: usize,
        cost: ValueSize,
        line: usize,
    ) -> Result<(), Fatal> {
        if anchor > 0 {
            self.spend(cost, line)?;
            self.anchors.insert(anchor, (value.clone(), cost));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(value);
            return Ok(());
        };
        open.cost = open.cost.and(cost);
        match &mut open.kind {
            CollectionKind::List(values) => values.push(value),
            CollectionKind::Table(fields, key) => {
                if let Some(key) = key.take() {
                    // Of duplicate keys the first value stays. The key was already reported.
                    fields.entry(key).or_insert(value);
                }
            }
        }
        Ok(())
    }

    fn key(&mut self, name: String, line: usize) -> Result<(), Fatal> {
        if name == "<<" {
            return fatal(
                line,
                "has a merge key (<<), which is not known here; write the fields, or an alias for all of a value",
            );
        }
        self.report_duplicate(&name, line);
        let Some(Open {
            kind: CollectionKind::Table(_, key),
            cost,
            ..
        }) = self.open.last_mut()
        else {
            return Ok(());
        };
        cost.bytes = cost.bytes.saturating_add(name.len());
        *key = Some(name);
        Ok(())
    }

    fn report_duplicate(&mut self, name: &str, line: usize) {
        let Some(Open {
            kind: CollectionKind::Table(fields, _),
            ..
        }) = self.open.last()
        else {
            return;
        };
        let Some(first) = fields.get(name).filter(|_| !is_full(&self.duplicates)) else {
            return;
        };
        let first = first.origin().unwrap_or("before");
        let message = format!("occurs twice, the first time at {first}; remove one of them");
        let error = ConfigError {
            path: join(&self.path(), &shown_key(name)),
            message,
            place: Some(place(line)),
        };
        add(&mut self.duplicates, error);
    }

    /// Path of the innermost open table. It can be long, so it is made only for an error.
    fn path(&self) -> String {
        let outer = &self.open[..self.open.len().saturating_sub(1)];
        outer
            .iter()
            .fold(String::new(), |path, open| match &open.kind {
                CollectionKind::List(values) => format!("{path}[{}]", values.len()),
                CollectionKind::Table(_, key) => {
                    join(&path, &shown_key(key.as_deref().unwrap_or_default()))
                }
            })
    }

    fn wants_key(&self) -> bool {
        matches!(
            self.open.last(),
            Some(Open {
                kind: CollectionKind::Table(_, None),
                ..
            })
        )
    }

    fn spend(&mut self, cost: ValueSize, line: usize) -> Result<(), Fatal> {
        self.spent = self.spent.and(cost);
        if self.spent.values > self.most.values || self.spent.bytes > self.most.bytes {
            return fatal(
                line,
                "comes to more values than a config has, counting what its aliases (*…) repeat",
            );
        }
        Ok(())
    }
}

fn value(kind: ValueKind, line: usize) -> Value {
    Value::new(Some(&place(line)), kind)
}

fn place(line: usize) -> String {
    format!("line {line}")
}

fn fatal(line: usize, message: &str) -> Result<(), Fatal> {
    Err(Box::new(error_at(Some(line), message)))
}

fn error_at(line: Option<usize>, message: &str) -> ConfigError {
    ConfigError {
        path: String::new(),
        message: message.to_owned(),
        place: line.map(place),
    }
}

/// The parser's error, without any of the text: it may be a password file that was named by mistake.
fn unreadable(error: &ScanError) -> ConfigError {
    let line = Some(error.marker().line());
    match error.info() {
        TOO_DEEP => error_at(line, &format!("is nested more than {DEPTH_MAX} deep")),
        info if info.contains('`') => error_at(
            line,
            "is not valid YAML: a character that nothing begins with",
        ),
        info => error_at(line, &format!("is not valid YAML: {info}")),
    }
}
