//! The program around the server: command line, configs, logs, spans, documents and the rules of the source.

mod admin_commands;
mod ask_commands;
mod bare_machine;
mod command_line;
mod deploy;
mod descriptors;
mod dockerfile;
pub mod docs;
mod examples;
mod hostile_configs;
mod image;
mod kept_configs;
mod log_output;
mod migrate;
mod monitoring;
mod package;
mod recipes;
mod reload;
mod secrets;
mod service_manager;
mod simulate;
mod sizing;
mod tidy;
mod trace;
mod wrong_configs;
mod wrong_invocations;
