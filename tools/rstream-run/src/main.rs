//! Runs a program with the library loaded that carries its TCP connections through shared memory.
#![forbid(unsafe_code)]

mod elf;

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: rstream-run [-sv] PROGRAM [ARGUMENT...]

Runs PROGRAM. Its TCP connections to programs on this host that run so too go through shared memory, soon
after they begin to be used. All others stay as they are.

  -s, --statistics  what was counted, on standard error at the end of each process
  -v, --verbose     a line on standard error for each connection: shared memory, or why not
  -h, --help        this text

The library is librstream_preload.so, beside this program or in ../lib.
";

/// What this program returns if it cannot run the other, as shells do.
const CANNOT: u8 = 126;
const NOT_FOUND: u8 = 127;

const LIBRARY: &str = "librstream_preload.so";

/// What the command line says.
struct Options {
    statistics: bool,
    verbose: bool,
    program: OsString,
    arguments: Vec<OsString>,
}

fn main() -> ExitCode {
    match options() {
        Ok(Some(options)) => {
            let (status, error) = run(&options);
            eprintln!("rstream-run: {error}");
            ExitCode::from(status)
        }
        Ok(None) => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprint!("rstream-run: {error}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// `None`: help is wanted.
fn options() -> Result<Option<Options>, lexopt::Error> {
    let mut parser = lexopt::Parser::from_env();
    let (mut statistics, mut verbose) = (false, false);
    while let Some(argument) = parser.next()? {
        match argument {
            lexopt::Arg::Short('s') | lexopt::Arg::Long("statistics") => statistics = true,
            lexopt::Arg::Short('v') | lexopt::Arg::Long("verbose") => verbose = true,
            lexopt::Arg::Short('h') | lexopt::Arg::Long("help") => return Ok(None),
            lexopt::Arg::Value(program) => {
                let arguments = parser.raw_args()?.collect();
                return Ok(Some(Options { statistics, verbose, program, arguments }));
            }
            other => return Err(other.unexpected()),
        }
    }
    Err("which program?".into())
}

/// Becomes the program. Returns only if that fails, with a status and the reason.
fn run(options: &Options) -> (u8, String) {
    let name = options.program.to_string_lossy();
    let Some(library) = library() else {
        return (CANNOT, format!("there is no {LIBRARY} beside this program or in ../lib"));
    };
    let Some(program) = find(&options.program) else { return (NOT_FOUND, format!("{name}: not found")) };
    if let Err(reason) = check(&program) {
        return (CANNOT, format!("{name}: {reason}"));
    }
    let mut preload = library.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(&program);
    command.arg0(&options.program).args(&options.arguments).env("LD_PRELOAD", preload);
    // The program may change its folder before its first connection.
    if let Some(settings) = env::var_os("RSTREAM_SOCKETS_CONF").filter(|settings| !settings.is_empty())
        && let Ok(settings) = std::path::absolute(settings)
    {
        command.env("RSTREAM_SOCKETS_CONF", settings);
    }
    if options.statistics {
        command.env("RSTREAM_SOCKETS_STATISTICS", "1");
    }
    if options.verbose {
        command.env("RSTREAM_SOCKETS_VERBOSE", "1");
    }
    (CANNOT, format!("{name}: {}", command.exec()))
}

fn library() -> Option<PathBuf> {
    let own = env::current_exe().ok()?;
    let folder = own.parent()?;
    [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)].into_iter().find(|path| path.is_file())
}

/// The file of a program, as a shell finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| path.exists());
    }
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Refuses programs into which the system loads no such library.
fn check(program: &Path) -> Result<(), String> {
    const SET_ID: u32 = 0o6000;
    let data = program.metadata().map_err(|error| error.to_string())?;
    if data.mode() & SET_ID != 0 {
        return Err("it runs with other rights than the caller's: the system loads no library into it".into());
    }
    let bytes = std::fs::read(program).map_err(|error| error.to_string())?;
    match elf::is_static(&bytes) {
        Some(true) => Err("it is linked statically: no library can be loaded into it".into()),
        _ => Ok(()),
    }
}
