//! Shows what the processes of this host count of their TCP connections: which go through shared memory, how
//! much, and why others do not.
#![forbid(unsafe_code)]

mod find;
mod json;
mod model;
mod rate;
mod table;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use find::look;
use model::Sight;
use rate::Rates;

const USAGE: &str = "\
usage: rstream-stat [-w] [-j] [PID...]

Shows the TCP connections of programs that rstream-run runs: of the processes PID, or of all that may be read.

  -w, --watch   again each second, with rates
  -j, --json    as JSON, a line each time
  -h, --help    this text

A user sees the own processes, root sees all.
";

const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Options {
    watches: bool,
    is_json: bool,
    processes: Vec<u32>,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprint!("rstream-stat: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match show(&options) {
        Ok(code) => code,
        // Whoever read has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rstream-stat: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `None`: help is wanted.
fn options() -> Result<Option<Options>, lexopt::Error> {
    use lexopt::ValueExt;
    let mut parser = lexopt::Parser::from_env();
    let mut options = Options::default();
    while let Some(argument) = parser.next()? {
        match argument {
            lexopt::Arg::Short('w') | lexopt::Arg::Long("watch") => options.watches = true,
            lexopt::Arg::Short('j') | lexopt::Arg::Long("json") => options.is_json = true,
            lexopt::Arg::Short('h') | lexopt::Arg::Long("help") => return Ok(None),
            lexopt::Arg::Value(process) => options.processes.push(process.parse()?),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}

/// Shows once, or until it is stopped.
fn show(options: &Options) -> io::Result<ExitCode> {
    let mut output = io::stdout().lock();
    let clears = options.watches && !options.is_json && output.is_terminal();
    let mut before: Option<(Instant, Sight)> = None;
    let mut next = Instant::now();
    loop {
        let (now, sight) = (Instant::now(), look()?);
        let rates = before.as_ref().map(|(then, before)| Rates::new(before, &sight, now - *then));
        let text = match options.is_json {
            true => json::text(&sight, &options.processes, rates.as_ref())?,
            false => table::text(&sight, &options.processes, rates.as_ref()),
        };
        if clears {
            write!(output, "\x1b[H\x1b[J")?;
        }
        output.write_all(text.as_bytes())?;
        output.flush()?;
        if !options.watches {
            return Ok(explain(&sight, &options.processes));
        }
        before = Some((now, sight));
        next += SECOND;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Says why processes that were asked for are not shown.
fn explain(sight: &Sight, wanted: &[u32]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for &process in wanted {
        if let Some(why) = find::why_not_shown(sight, process) {
            eprintln!("rstream-stat: {process}: {why}");
            code = ExitCode::FAILURE;
        }
    }
    code
}
