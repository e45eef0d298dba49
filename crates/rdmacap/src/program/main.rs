//! The program: captures in, tables or JSON out.

#![forbid(unsafe_code)]

mod check;
mod files;
mod info;
mod input;
mod interrupt;
mod line;
mod messages;
mod ops;
mod options;
mod pcapng;
mod regions;
mod rows;
mod rpc;
mod stats;
mod streams;
mod text;
mod upper;

use std::io::{self, Write};
use std::process::ExitCode;

use options::{Command, Options, Otherwise};

/// Neither the options nor a file could be read.
const NOT_READABLE: u8 = 3;

fn main() -> ExitCode {
    let options = match options::parse(lexopt::Parser::from_env()) {
        Ok(options) => options,
        Err(Otherwise::Help) => return said(options::HELP),
        Err(Otherwise::Version) => return said(concat!("rdmacap ", env!("CARGO_PKG_VERSION"), "\n")),
        Err(Otherwise::Wrong(what)) => return failed(&format!("{what}; see rdmacap --help")),
    };
    match run(&options) {
        Ok(code) => ExitCode::from(code),
        // The reader of the pipe has seen enough.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string()),
    }
}

fn said(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn failed(what: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "rdmacap: {what}");
    ExitCode::from(NOT_READABLE)
}

/// Why a command did not come to its end.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Input(#[from] input::InputError),
    #[error(transparent)]
    Output(#[from] io::Error),
    #[error("{0}")]
    Usage(&'static str),
}

impl Failure {
    fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

fn run(options: &Options) -> Result<u8, Failure> {
    let out = &text::Output::new(options);
    let code = match options.command {
        Command::Info => info::run(options, out)?,
        Command::Ops => ops::run(options, out)?,
        Command::Regions => regions::run(options, out)?,
        Command::Messages => messages::run(options, out)?,
        Command::Stats => stats::run(options, out)?,
        Command::Check => check::run(options, out)?,
        Command::Streams => streams::run(options, out)?,
        Command::Rpc => rpc::run(options, out)?,
    };
    match out.end() {
        // A verdict is one although nobody reads it.
        Err(error) if !error.is_closed_pipe() => Err(error),
        _ => Ok(code),
    }
}
