//! `tollgate check`: judges the config as serving would read it, and prints every error, or every setting in force.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::ServeArguments;
use super::connect::Output;
use super::descriptor;
use super::terminal::{fail, print, tell};
use tollgate_core::visible::visible;
use tollgate_server::config::{Config, SettingInForce, Sources};
use tollgate_server::telemetry;

/// The arguments of `tollgate check`: all of `serve`, so that a command line can be tried before it is used.
#[derive(Debug, clap::Args)]
pub(super) struct CheckArguments {
    /// The config file; - is standard input. Same as --config FILE, and in place of TOLLGATE_CONFIG.
    file: Option<PathBuf>,
    /// Print every setting with its value and where it comes from: default, line, variable or flag. Passwords are hidden.
    #[arg(long, conflicts_with = "explain_descriptor")]
    print: bool,
    /// How to print the settings: human lines, or one json array.
    #[arg(short, long, value_enum, default_value_t, requires = "print")]
    output: Output,
    /// Tell which rule of envoy.domains decides a descriptor with these entries, such as path=/login user=alice.
    #[arg(long, value_name = "NAME=VALUE", num_args = 1..)]
    explain_descriptor: Vec<String>,
    /// The domain of that descriptor, where the config has several.
    #[arg(long, value_name = "DOMAIN", requires = "explain_descriptor")]
    domain: Option<String>,
    #[command(flatten)]
    serve: ServeArguments,
}

pub(super) fn check(mut arguments: CheckArguments) -> ExitCode {
    let sources = match arguments.sources() {
        Ok(sources) => sources,
        Err(sentence) => return fail(2, &sentence),
    };
    let (config, mut settings) = match Config::load_and_list(&sources) {
        Ok(valid) => valid,
        Err(errors) => {
            tell(&errors.to_string());
            return ExitCode::FAILURE;
        }
    };
    settings.extend(arguments.serve.log_settings());
    let text = if !arguments.explain_descriptor.is_empty() {
        match arguments.explain(&config) {
            Ok(explained) => explained,
            Err(sentence) => return fail(1, &sentence),
        }
    } else if arguments.print && matches!(arguments.output, Output::Json) {
        Value::from(settings.iter().map(in_json).collect::<Vec<_>>()).to_string()
    } else {
        let settings = settings.iter().filter(|_| arguments.print).map(line);
        let valid = std::iter::once(valid(&sources, &config));
        valid.chain(settings).collect::<Vec<_>>().join("\n")
    };
    print(&text).map_or_else(|code| code, |()| ExitCode::SUCCESS)
}

impl CheckArguments {
    /// All sources of the config. Errors: a sentence.
    fn sources(&mut self) -> Result<Sources, String> {
        // What follows the flag are entries, and the config file at the end.
        if self.file.is_none() {
            self.file = self
                .explain_descriptor
                .pop_if(|last| !last.contains('='))
                .map(PathBuf::from);
        }
        if let Some(file) = self.file.take() {
            self.serve.name_config(file)?;
        }
        telemetry::check_level(&self.serve.log_level)?;
        self.serve.sources()
    }

    fn explain(&self, config: &Config) -> Result<String, String> {
        let domain = self.domain.as_deref();
        descriptor::explain(config.plans.envoy(), domain, &self.explain_descriptor)
    }
}

/// Says that the config is valid, with a line for each warning.
fn valid(sources: &Sources, config: &Config) -> String {
    let plural = if config.plans.len() == 1 { "" } else { "s" };
    let valid = format!(
        "{}: valid, {} plan{plural}",
        sources.origin(),
        config.plans.len()
    );
    let warnings = config
        .warnings
        .iter()
        .map(|warning| format!("  warning: {warning}"));
    std::iter::once(valid)
        .chain(warnings)
        .collect::<Vec<_>>()
        .join("\n")
}

fn line(setting: &SettingInForce) -> String {
    let value = match setting.value.as_deref() {
        None => "none".to_owned(),
        Some("") => "\"\"".to_owned(),
        Some(value) => value.to_owned(),
    };
    visible(&format!("{} = {value}  ({})", setting.path, setting.origin))
}

fn in_json(setting: &SettingInForce) -> Value {
    json!({ "path": setting.path, "value": setting.value, "origin": setting.origin })
}
