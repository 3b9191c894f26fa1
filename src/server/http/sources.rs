//! The sources that the config names for the parts of a subject: parameters, header fields, the client's address, and defaults.

use std::sync::Arc;

use axum::http::header::HeaderName;

use tollgate_core::key::Cost;
use tollgate_core::plan::check_name;

/// Longest name of a header field in the config. Proxies allow some hundred bytes for name and value.
const HEADER_BYTES_MAX: usize = 64;
/// Longest name of a parameter. Names are written by hand, into a query.
const PARAMETER_BYTES_MAX: usize = 32;
/// Maximum number of sources of a part, and of parts of a joined key. Each is looked up for each check.
pub const SOURCES_MAX: usize = 8;
/// Parameters that say how to decide, and not whom to count.
const RESERVED_PARAMETERS: [&str; 7] = [
    "peek",
    "deny_status",
    "requests",
    "request_id",
    "ttl",
    "actual",
    "if_unknown",
];

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The parameter of this name.
    Parameter(Arc<str>),
    /// The value of a header field.
    Header(HeaderName),
    /// The address of the client.
    ClientAddress,
    /// This text: the name of a plan, or the digits of a cost.
    Default(Arc<str>),
}

/// The part of a subject that a source is for. It says which sources there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectPart {
    /// Who is counted.
    Key,
    /// The plan that decides.
    Plan,
    /// The units to take.
    Cost,
    /// The shard of the key.
    Shard,
}

impl Source {
    /// A parameter.
    pub fn parameter(name: &str) -> Self {
        Self::Parameter(name.into())
    }

    /// Whether the caller gives it as a parameter.
    pub(super) fn is_parameter(&self) -> bool {
        matches!(self, Self::Parameter(_))
    }

    /// A text that is always there.
    pub fn default(text: &str) -> Self {
        Self::Default(text.into())
    }

    /// Parses a source of the key: parts joined by `+`. `only` is the one parameter that may be named; without it, any may.
    ///
    /// Errors, also of the functions below: what is wrong and what is right.
    pub fn parse_joined(text: &str, only: Option<&str>) -> Result<Vec<Self>, String> {
        let parts: Vec<&str> = text.split('+').collect();
        if parts.len() > SOURCES_MAX {
            return Err(format!(
                "joins {} parts; a key has at most {SOURCES_MAX}",
                parts.len()
            ));
        }
        let parse = |part| Self::parse(part, SubjectPart::Key, only);
        parts.into_iter().map(parse).collect()
    }

    /// Parses a source of a part.
    pub fn parse(text: &str, part: SubjectPart, only: Option<&str>) -> Result<Self, String> {
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        match (kind, part) {
            ("param", _) if only.is_none_or(|only| only == name) => {
                parameter_name(name).map(Self::Parameter)
            }
            ("header", _) => header_name(name).map(Self::Header),
            ("client_address", SubjectPart::Key) if text == kind => Ok(Self::ClientAddress),
            ("default", SubjectPart::Plan) => match check_name(name) {
                Ok(()) => Ok(Self::Default(name.into())),
                Err(error) => Err(format!("names a plan that {error}")),
            },
            ("default", SubjectPart::Cost) => match whole_number(name).map(Cost::new) {
                Some(Ok(_)) => Ok(Self::Default(name.into())),
                _ => Err("names no cost; write a whole number, 1 or more".to_owned()),
            },
            _ => Err(part.right(only.unwrap_or("NAME"))),
        }
    }

    /// The name of the parameter, if it is one of [`RESERVED_PARAMETERS`], and so cannot be a source.
    pub fn reserved_name(&self) -> Option<&str> {
        match self {
            Self::Parameter(name) => {
                Some(&**name).filter(|name| RESERVED_PARAMETERS.contains(name))
            }
            _ => None,
        }
    }

    /// Whether the value is always there. A client on a TCP connection always has an address.
    pub fn is_always_there(&self) -> bool {
        matches!(self, Self::ClientAddress | Self::Default(_))
    }

    /// What a caller could send, for the answer to one that sent nothing.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Parameter(name) => format!("the parameter {name}"),
            Self::Header(name) => format!("the header {name}"),
            Self::ClientAddress => "a connection with an address".to_owned(),
            // Unreachable, since it is always there.
            Self::Default(text) => format!("the default {text}"),
        }
    }
}

impl SubjectPart {
    /// What is wrong with a source of another kind. `name` is that of a parameter.
    fn right(self, name: &str) -> String {
        match self {
            Self::Key => format!(
                "is not a source of a key; write param:{name}, header:NAME, client_address, or some of these joined by +"
            ),
            Self::Plan => {
                format!(
                    "is not a source of a plan; write param:{name}, header:NAME or default:NAME"
                )
            }
            Self::Cost => {
                format!(
                    "is not a source of a cost; write param:{name}, header:NAME or default:NUMBER"
                )
            }
            Self::Shard => format!("is not a source of a shard; write param:{name} or header:NAME"),
        }
    }
}

/// Whether a text may be the name of a parameter.
pub(super) fn is_parameter_name(name: &str) -> bool {
    let letters =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    (1..=PARAMETER_BYTES_MAX).contains(&name.len()) && name.bytes().all(letters)
}

fn parameter_name(name: &str) -> Result<Arc<str>, String> {
    if is_parameter_name(name) {
        return Ok(name.into());
    }
    Err(format!(
        "names no parameter; a name has 1 to {PARAMETER_BYTES_MAX} of a-z, 0-9, _ and -, such as param:user"
    ))
}

fn header_name(name: &str) -> Result<HeaderName, String> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .ok()
        .filter(|_| name.len() <= HEADER_BYTES_MAX);
    parsed.ok_or_else(|| {
        format!("names no header field; a name has 1 to {HEADER_BYTES_MAX} letters, digits and dashes, such as header:x-api-key")
    })
}

/// Parses digits only; `parse` would also accept a sign.
pub(super) fn whole_number(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}
