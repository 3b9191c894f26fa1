//! One line of a log as a request: who asked, by which plan, when, and for how much.

use super::fields::{Fields, Format, Values, variable};
use super::stamp::{self, Stamp};
use tollgate_core::key::KEY_BYTES_MAX;
use tollgate_core::plan::NAME_BYTES_MAX;
use tollgate_core::utc::SECOND_US;

/// Fields that hold the time, the most usual ones first.
const TIME_NAMES: [&str; 10] = [
    "time_local",
    "time_iso8601",
    "msec",
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "datetime",
    "date",
    "log.timestamp",
];

/// How lines become requests.
#[derive(Debug, Clone)]
pub struct LineOptions {
    /// How the lines are written.
    pub format: Format,
    /// The key: text with variables, or the name of one field.
    pub key: String,
    /// The plan: its name, or a variable.
    pub plan: String,
    /// The cost: a number from 1, or a variable.
    pub cost: String,
    /// The field with the time. `None`: the first of the usual names.
    pub time: Option<String>,
}

/// A request, read from a line.
#[derive(Debug, Default)]
pub struct LineRequest {
    /// Microseconds since 1970.
    pub at_us: u64,
    /// 1 to [`KEY_BYTES_MAX`] bytes.
    pub key: Vec<u8>,
    /// The name of the plan, of at most [`NAME_BYTES_MAX`] bytes.
    pub plan: Vec<u8>,
    /// At least 1.
    pub cost: u64,
}

/// Why a line is not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skipped {
    /// It cannot be read; the reason.
    Unreadable(&'static str),
    /// All fields of the key are empty.
    NoKey,
    /// The cost is 0.
    NoCost,
}

/// Reads lines; see [`Self::new`].
#[derive(Debug)]
pub struct LineReader {
    fields: Fields,
    time: usize,
    key: Vec<Piece>,
    plan: Option<usize>,
    cost: Option<usize>,
    fixed_plan: Vec<u8>,
    fixed_cost: u64,
    values: Values,
    /// The last time read, since many lines in turn have the same.
    last_time: (Vec<u8>, Option<Stamp>),
    is_whole: bool,
}

#[derive(Debug)]
enum Piece {
    Text(Vec<u8>),
    Field(usize),
}

impl LineReader {
    /// Prepares to read lines. `sample` has the first lines of the log, and tells the fields of JSON and CSV.
    ///
    /// Errors: a sentence, for a field that the log does not have, or when no line of the sample can be read.
    pub fn new(options: &LineOptions, sample: &[&[u8]]) -> Result<Self, String> {
        let mut fields = Fields::new(&options.format, sample)?;
        let time = match &options.time {
            Some(name) => fields.want(name.trim_start_matches('$'))?,
            None => usual_time(&mut fields)?,
        };
        let key = pieces(&mut fields, &options.key).map_err(|error| format!("--key: {error}"))?;
        let plan = field(&mut fields, &options.plan).map_err(|error| format!("--plan: {error}"))?;
        let (fixed_cost, cost) =
            cost(&mut fields, &options.cost).map_err(|error| format!("--cost: {error}"))?;
        let fixed_plan = options.plan.clone().into_bytes();
        let values = Values::default();
        let last_time = (Vec::new(), None);
        let is_whole = true;
        let mut reader = Self {
            fields,
            time,
            key,
            plan,
            cost,
            fixed_plan,
            fixed_cost,
            values,
            last_time,
            is_whole,
        };
        reader.try_sample(sample)?;
        Ok(reader)
    }

    fn try_sample(&mut self, sample: &[&[u8]]) -> Result<(), String> {
        let mut request = LineRequest::default();
        let mut first = None;
        let mut is_whole = true;
        let header = usize::from(self.has_header());
        let mut readable = 0;
        for (line, number) in sample
            .iter()
            .zip(1..)
            .skip(header)
            .filter(|(line, _)| !line.is_empty())
        {
            match self.read(line, &mut request) {
                Err(Skipped::Unreadable(reason)) => first = first.or(Some((number, reason))),
                Ok(()) | Err(_) => {
                    readable += 1;
                    is_whole &= request.at_us % SECOND_US == 0;
                }
            }
        }
        self.is_whole = is_whole;
        match first {
            Some((number, reason)) if readable == 0 => Err(format!(
                "none of the first {} lines can be read; line {number}: {reason}",
                sample.len() - header
            )),
            _ => Ok(()),
        }
    }

    /// Whether the first line names the fields and is not a request.
    pub fn has_header(&self) -> bool {
        self.fields.has_header()
    }

    /// Whether all times of the sample are whole seconds.
    pub fn is_in_whole_seconds(&self) -> bool {
        self.is_whole
    }

    /// Whether the plan is a variable.
    pub fn reads_plans(&self) -> bool {
        self.plan.is_some()
    }

    /// Reads one line, without its end.
    pub fn read(&mut self, line: &[u8], request: &mut LineRequest) -> Result<(), Skipped> {
        self.fields
            .cut(line, &mut self.values)
            .map_err(Skipped::Unreadable)?;
        request.at_us = self.read_time(line)?;
        let value = |index| self.fields.value(index, line, &self.values);
        request.cost = self.fixed_cost;
        if let Some(index) = self.cost {
            request.cost = number(value(index))
                .ok_or(Skipped::Unreadable("its cost is not a whole number"))?;
        }
        let plan = self.plan.map_or(self.fixed_plan.as_slice(), value);
        if plan.len() > NAME_BYTES_MAX {
            return Err(Skipped::Unreadable("its plan is longer than 64 bytes"));
        }
        request.plan.clear();
        request.plan.extend_from_slice(plan);
        let has_key = self.read_key(line, &mut request.key);
        match request.key.len() {
            _ if !has_key => Err(Skipped::NoKey),
            _ if request.cost == 0 => Err(Skipped::NoCost),
            ..=KEY_BYTES_MAX => Ok(()),
            _ => Err(Skipped::Unreadable("its key is longer than 512 bytes")),
        }
    }

    /// The time of a line whose fields are cut.
    fn read_time(&mut self, line: &[u8]) -> Result<u64, Skipped> {
        let time = self.fields.value(self.time, line, &self.values);
        if self.last_time.0 != time {
            self.last_time.1 = stamp::parse(time);
            self.last_time.0.clear();
            self.last_time.0.extend_from_slice(time);
        }
        self.last_time
            .1
            .map(|stamp| stamp.at_us)
            .ok_or(Skipped::Unreadable("its time cannot be read"))
    }

    /// Writes the key of a line whose fields are cut. Returns whether a field of it is not empty.
    fn read_key(&self, line: &[u8], key: &mut Vec<u8>) -> bool {
        key.clear();
        let mut has_field = false;
        for piece in &self.key {
            match piece {
                Piece::Text(text) => key.extend_from_slice(text),
                Piece::Field(index) => {
                    let value = self.fields.value(*index, line, &self.values);
                    has_field |= !value.is_empty();
                    key.extend_from_slice(value);
                }
            }
        }
        has_field
    }
}

fn usual_time(fields: &mut Fields) -> Result<usize, String> {
    let has = |name: &&&str| fields.names().contains(*name);
    match TIME_NAMES.iter().find(has) {
        Some(name) => fields.want(name),
        None => Err(format!(
            "no field of the log is named as times are ({}); name it with --time",
            TIME_NAMES.join(", ")
        )),
    }
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The field of a text that is one variable; `None` for a text without variables.
fn field(fields: &mut Fields, text: &str) -> Result<Option<usize>, String> {
    if !text.contains('$') {
        return Ok(None);
    }
    match pieces(fields, text)?.as_slice() {
        [Piece::Field(index)] => Ok(Some(*index)),
        _ => Err(format!(
            "{text:?} is more than one variable; write one, such as $plan"
        )),
    }
}

fn cost(fields: &mut Fields, text: &str) -> Result<(u64, Option<usize>), String> {
    match (field(fields, text)?, text.parse()) {
        (Some(index), _) => Ok((1, Some(index))),
        (None, Ok(units)) if units > 0 => Ok((units, None)),
        _ => Err(format!(
            "{text:?} is not a cost; write a whole number from 1, or a variable such as $request_length"
        )),
    }
}

/// A template as text and fields. A template without a `$` is the name of a field.
fn pieces(fields: &mut Fields, template: &str) -> Result<Vec<Piece>, String> {
    if !template.contains('$') {
        return Ok(vec![Piece::Field(fields.want(template)?)]);
    }
    let (begin, mut rest) = template.split_once('$').unwrap_or_default();
    let mut pieces = vec![Piece::Text(begin.into())];
    loop {
        let (name, after) =
            variable(rest).ok_or("a $ has no name after it; write $name or ${name}")?;
        let (name, after) = if rest.starts_with('{') {
            (name, after)
        } else {
            longest(fields, rest, name)
        };
        pieces.push(Piece::Field(fields.want(name)?));
        let Some((text, next)) = after.split_once('$') else {
            pieces.push(Piece::Text(after.into()));
            pieces.retain(|piece| !matches!(piece, Piece::Text(text) if text.is_empty()));
            return Ok(pieces);
        };
        pieces.push(Piece::Text(text.into()));
        rest = next;
    }
}

/// The longest name of a field that `rest` begins with, for names with dots such as `request.remote_ip`.
fn longest<'a>(fields: &Fields, rest: &'a str, name: &'a str) -> (&'a str, &'a str) {
    let known = fields
        .names()
        .into_iter()
        .filter(|known| known.len() > name.len() && rest.starts_with(known));
    let ends = |known: &&str| {
        !rest[known.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
    };
    let length = known.filter(ends).map(str::len).max().unwrap_or(name.len());
    rest.split_at(length)
}

#[cfg(test)]
mod tests;
