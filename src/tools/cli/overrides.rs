//! `tollgate override`: gives keys other limits than their plan's, by the admin service.

use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;

use super::admin::AdminServerArguments;
use tollgate_core::duration;
use tollgate_server::grpc::{OverrideQuestion, QuotaQuestion, SubjectQuestion};

/// What to do with overrides.
#[derive(Debug, clap::Subcommand)]
pub(super) enum OverrideCommand {
    /// Give a key, or all keys with a prefix, other limits. Exits with 0 when it is set, 1 when it is refused, 2 on an error.
    Set(SetArguments),
    /// Delete an override that was set by this command. Exits with 0 when there was one, 1 when not, 2 on an error.
    Delete(DeleteArguments),
    /// List overrides, of the config too. Exits with 0 when the server answers, 2 on an error.
    List(ListArguments),
}

/// Whose limits are other ones.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct SubjectArguments {
    /// One key.
    #[arg(short, long)]
    key: Option<String>,
    /// All keys that begin so.
    #[arg(long, value_name = "PREFIX")]
    key_prefix: Option<String>,
}

/// The arguments of `tollgate override set`.
#[derive(Debug, clap::Args)]
pub(super) struct SetArguments {
    /// The plan that would decide.
    #[arg(short, long)]
    plan: String,
    #[command(flatten)]
    subject: SubjectArguments,
    /// Decide as if the caller had asked for this plan.
    #[arg(long, value_name = "PLAN", conflicts_with_all = ["quota", "burst"], required_unless_present_any = ["quota", "burst"])]
    use_plan: Option<String>,
    /// Another quota, for the limit of this name, or the only one; may be repeated.
    #[arg(long, value_name = "[LIMIT=]UNITS")]
    quota: Vec<String>,
    /// Another burst, likewise.
    #[arg(long, value_name = "[LIMIT=]UNITS")]
    burst: Vec<String>,
    /// How long it holds, such as 2h [default: for good].
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse, conflicts_with = "until")]
    lasts: Option<Duration>,
    /// Until when it holds, such as 2027-01-01T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,
    /// Why it is set, for people.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Set it only if the present one has this version; 0: only if there is none.
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    #[command(flatten)]
    server: AdminServerArguments,
}

/// The arguments of `tollgate override delete`.
#[derive(Debug, clap::Args)]
pub(super) struct DeleteArguments {
    /// The plan that would decide.
    #[arg(short, long)]
    plan: String,
    #[command(flatten)]
    subject: SubjectArguments,
    /// Delete it only if it has this version.
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    #[command(flatten)]
    server: AdminServerArguments,
}

/// The arguments of `tollgate override list`.
#[derive(Debug, clap::Args)]
pub(super) struct ListArguments {
    /// The plan [default: all plans].
    #[arg(short, long)]
    plan: Option<String>,
    /// List what matches this key, the one in force first.
    #[arg(long, value_name = "KEY", requires = "plan")]
    matching: Option<String>,
    #[command(flatten)]
    server: AdminServerArguments,
}

pub(super) fn run(command: OverrideCommand) -> ExitCode {
    match command {
        OverrideCommand::Set(arguments) => set(&arguments),
        OverrideCommand::Delete(arguments) => delete(&arguments),
        OverrideCommand::List(arguments) => list(&arguments),
    }
}

fn set(arguments: &SetArguments) -> ExitCode {
    let server = &arguments.server;
    server.run(async |connection, token| {
        let question = arguments.question()?;
        connection
            .set_override(question, server.form(), token.as_ref())
            .await
    })
}

fn delete(arguments: &DeleteArguments) -> ExitCode {
    let server = &arguments.server;
    server.run(async |connection, token| {
        let of = (arguments.plan.clone(), arguments.subject.question());
        let form = server.form();
        let deleted = connection.delete_override(of, arguments.if_version, form, token.as_ref());
        deleted.await
    })
}

fn list(arguments: &ListArguments) -> ExitCode {
    let server = &arguments.server;
    server.run(async |connection, token| {
        let plan = arguments.plan.clone().unwrap_or_default();
        let matching = arguments.matching.clone().unwrap_or_default();
        connection
            .list_overrides(plan, matching, server.form(), token.as_ref())
            .await
    })
}

impl SetArguments {
    fn question(&self) -> Result<OverrideQuestion, String> {
        let after_us = |lasts: Duration| u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX);
        Ok(OverrideQuestion {
            plan: self.plan.clone(),
            subject: self.subject.question(),
            use_plan: self.use_plan.clone(),
            quotas: quotas(&self.quota, &self.burst)?,
            until_us: self.until.map(at_us).transpose()?,
            after_us: self.lasts.map(after_us),
            reason: self.reason.clone().unwrap_or_default(),
            if_version: self.if_version,
        })
    }
}

impl SubjectArguments {
    fn question(&self) -> SubjectQuestion {
        match (&self.key, &self.key_prefix) {
            (_, Some(prefix)) => SubjectQuestion::Prefix(prefix.clone()),
            (key, None) => SubjectQuestion::Key(key.clone().unwrap_or_default()),
        }
    }
}

fn at_us(at: Timestamp) -> Result<u64, String> {
    u64::try_from(at.as_microsecond()).map_err(|_| "--until is before 1970".to_owned())
}

/// The quota and the burst of each limit that is named.
fn quotas(quota: &[String], burst: &[String]) -> Result<Vec<QuotaQuestion>, String> {
    let mut limits: Vec<QuotaQuestion> = Vec::new();
    let named = quota.iter().map(|text| ("--quota", text));
    for (flag, text) in named.chain(burst.iter().map(|text| ("--burst", text))) {
        let (name, units) = name_and_units(flag, text)?;
        let index = limits.iter().position(|limit| limit.name == name);
        let index = index.unwrap_or_else(|| {
            limits.push(QuotaQuestion {
                name: name.to_owned(),
                ..QuotaQuestion::default()
            });
            limits.len() - 1
        });
        let place = match flag {
            "--quota" => &mut limits[index].quota,
            _ => &mut limits[index].burst,
        };
        if place.replace(units).is_some() {
            return Err(format!("{flag} is given twice for one limit; keep one"));
        }
    }
    Ok(limits)
}

/// The limit that is named, empty for the only one, and its units.
fn name_and_units<'a>(flag: &str, text: &'a str) -> Result<(&'a str, u64), String> {
    let (name, units) = text.rsplit_once('=').unwrap_or(("", text));
    let units = units.parse().map_err(|_| {
        format!("{flag} is {text:?}; write a whole number, or the name of a limit, = and a number")
    })?;
    Ok((name, units))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_the_limit_that_they_name() {
        let texts = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };
        let read = quotas(&texts(&["300", "day=9"]), &texts(&["day=4"]));
        let limit = |name: &str, quota, burst| QuotaQuestion {
            name: name.to_owned(),
            quota,
            burst,
        };
        let expected = vec![limit("", Some(300), None), limit("day", Some(9), Some(4))];
        assert_eq!(read, Ok(expected));
        for (quota, burst) in [(&["x"][..], &[][..]), (&["1", "2"], &[]), (&[], &["a=b"])] {
            assert!(quotas(&texts(quota), &texts(burst)).is_err());
        }
    }
}
