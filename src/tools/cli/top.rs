//! `tollgate top`: the heaviest keys, on a page of the terminal that is asked for anew each second, or once as a table or JSON.

mod page;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;

use super::admin::AdminServerArguments;
use super::connect::run;
use super::terminal::print;
use page::{TopPage, View};
use tollgate_server::grpc::{AdminToken, AnswerForm, ClientConnection, TopQuestion};

/// How often the page asks; replicas publish once a second.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of keys of one answer.
const LIMIT_MAX: i64 = 500;

/// The arguments of `tollgate top`.
#[derive(Debug, clap::Args)]
pub(super) struct TopArguments {
    /// The plan whose keys to list [default: all plans].
    #[arg(short, long)]
    plan: Option<String>,
    /// What keys are ranked by.
    #[arg(short, long, value_enum, default_value_t)]
    by: By,
    /// Maximum number of keys to list.
    #[arg(short, long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=LIMIT_MAX))]
    limit: u32,
    /// Print one table and end, as without a terminal.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    admin: AdminServerArguments,
}

/// What keys are ranked by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum By {
    /// Requests that were denied.
    #[default]
    Denials,
    /// Units of the requests that were allowed.
    Cost,
}

pub(super) fn top(arguments: &TopArguments) -> ExitCode {
    let question = arguments.question();
    run(async {
        let (connection, token) = arguments.admin.connect().await?;
        if arguments.shows_page() {
            return refresh(&connection, question, token.as_ref())
                .await
                .map(|()| ExitCode::SUCCESS);
        }
        let table = connection.top(&question, token.as_ref()).await?;
        let text = match arguments.admin.form() {
            AnswerForm::Human => table_text(&View {
                question: &question,
                table: &table,
            }),
            AnswerForm::Json => table.json(),
        };
        Ok(print(&text).map_or_else(|code| code, |()| ExitCode::SUCCESS))
    })
}

impl TopArguments {
    fn question(&self) -> TopQuestion {
        TopQuestion {
            plan: self.plan.clone(),
            by_cost: self.by == By::Cost,
            limit: self.limit,
        }
    }

    /// Whether a person at a terminal is shown a page.
    fn shows_page(&self) -> bool {
        !self.once
            && self.admin.form() == AnswerForm::Human
            && io::stdout().is_terminal()
            && io::stdin().is_terminal()
    }
}

/// Shows the page until it is closed. Errors: a sentence, after the terminal is as it was.
async fn refresh(
    connection: &ClientConnection,
    mut question: TopQuestion,
    token: Option<&AdminToken>,
) -> Result<(), String> {
    let mut table = connection.top(&question, token).await?;
    let mut page = TopPage::open()?;
    loop {
        page.draw(&View {
            question: &question,
            table: &table,
        })?;
        match page.key_within(REFRESH_EVERY)? {
            Some(page::PressedKey::Close) => return Ok(()),
            Some(page::PressedKey::SwitchOrder) => question.by_cost = !question.by_cost,
            None => {}
        }
        table = connection.top(&question, token).await?;
    }
}

/// The table as lines. Above it: whether the store decides, and what is counted.
fn table_text(view: &View<'_>) -> String {
    let rows = view.rows();
    let widths: Vec<usize> = (0..page::COLUMNS)
        .map(|column| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let line = |row: &[String; page::COLUMNS]| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let state = Some(view.table.store_state.clone()).filter(|state| !state.is_empty());
    state
        .into_iter()
        .chain([view.summary()])
        .chain(rows.iter().map(line))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_server::grpc::{TopRow, TopTable};

    pub(super) fn table() -> TopTable {
        let row = |key: Option<&str>, plan: &str, count, error| TopRow {
            key: key.map(str::to_owned),
            key_hash: "00112233445566aa".to_owned(),
            plan: plan.to_owned(),
            count,
            error,
        };
        TopTable {
            rows: vec![row(Some("alice"), "free", 90, 0), row(None, "login", 7, 3)],
            unlisted_max: 3,
            total: 120,
            window: Duration::from_secs(55),
            replicas: 3,
            replicas_missing: 1,
            this_replica_alone: false,
            store_state: "Redis decides.".to_owned(),
            store_decides: true,
        }
    }

    #[test]
    fn a_table_is_aligned_and_says_what_it_counts() {
        let question = TopQuestion {
            plan: None,
            by_cost: false,
            limit: 9,
        };
        let text = table_text(&View {
            question: &question,
            table: &table(),
        });
        let lines = [
            "Redis decides.",
            "120 denials in 55s, all plans, 3 replicas (1 more not counted); a key that is not listed has 3 at most",
            "DENIALS  TOO HIGH BY  SHARE  PLAN   KEY",
            "90       0            75%    free   alice",
            "7        3            5%     login  #00112233445566aa",
        ];
        assert_eq!(text, lines.join("\n"));
        let question = TopQuestion {
            plan: Some("free".to_owned()),
            by_cost: true,
            limit: 9,
        };
        let alone = TopTable {
            this_replica_alone: true,
            replicas: 1,
            replicas_missing: 0,
            unlisted_max: 0,
            ..table()
        };
        let text = table_text(&View {
            question: &question,
            table: &alone,
        });
        assert!(
            text.contains(
                "\n120 units in 55s, plan free, this replica alone: Redis did not give the others'"
            ),
            "{text}"
        );
    }
}
