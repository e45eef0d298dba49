//! The command line.

use std::path::PathBuf;

use lexopt::{Arg, Parser, ValueExt};
use rdmacap::Config;

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) command: Command,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    /// Only this connection.
    pub(crate) connection: Option<u32>,
    /// Only this key.
    pub(crate) key: Option<u32>,
    /// Only operations that failed or are not whole.
    pub(crate) failed: bool,
    /// Folder to write to.
    pub(crate) folder: Option<PathBuf>,
    /// Last frame that counts for the content of regions.
    pub(crate) at: Option<u64>,
    /// File for RPC over TCP.
    pub(crate) pcap: Option<PathBuf>,
    /// Numbers of queue pairs that belong together.
    pub(crate) pairs: Vec<(u32, u32)>,
    /// Notes count as well.
    pub(crate) expect_clean: bool,
    pub(crate) config: Config,
}

impl Options {
    /// Whether this connection is asked for.
    pub(crate) fn wants(&self, connection: u32) -> bool {
        self.connection.is_none_or(|wanted| wanted == connection)
    }

    /// An option that is given and means nothing to the command: who gives it expects something of it.
    fn of_others(&self) -> Option<&'static str> {
        use Command::{Check, Messages, Ops, Regions, Rpc, Streams};
        let given: [(&str, bool, &[Command]); 6] = [
            ("--key", self.key.is_some(), &[Ops, Regions]),
            ("--failed", self.failed, &[Ops]),
            ("--write", self.folder.is_some(), &[Regions, Messages, Streams, Rpc]),
            ("--at", self.at.is_some(), &[Regions]),
            ("--pcap", self.pcap.is_some(), &[Rpc]),
            ("--expect-clean", self.expect_clean, &[Check]),
        ];
        let other = given.iter().find(|(_, given, commands)| *given && !commands.contains(&self.command));
        other.map(|(option, ..)| *option)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Info,
    Ops,
    Regions,
    Messages,
    Streams,
    Rpc,
    Stats,
    Check,
}

impl Command {
    const ALL: [(&'static str, Self); 8] = [
        ("info", Self::Info),
        ("ops", Self::Ops),
        ("regions", Self::Regions),
        ("messages", Self::Messages),
        ("streams", Self::Streams),
        ("rpc", Self::Rpc),
        ("stats", Self::Stats),
        ("check", Self::Check),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, command)| *command == self).map_or("", |(name, _)| name)
    }
}

/// What to do instead, or why nothing can be done.
#[derive(Debug)]
pub(crate) enum Otherwise {
    Help,
    Version,
    Wrong(String),
}

impl From<lexopt::Error> for Otherwise {
    fn from(error: lexopt::Error) -> Self {
        Self::Wrong(error.to_string())
    }
}

pub(crate) const HELP: &str = "\
rdmacap COMMAND [OPTION]... FILE...

  info        connections, how they are known, what is missing
  ops         one line for each operation
  regions     who wrote and read which bytes of which key
  messages    sends, with what they carry
  streams     rstream: the byte streams of each connection
  rpc         RPC-over-RDMA: calls and replies whole
  stats       by connection: operations, bytes, latencies, what came again
  check       exit status 0 clean, 1 errors in the traffic, 2 incomplete, 3 not readable

  FILE                pcap or pcapng; - is standard input; several are merged by time
  --json              JSON, a line for each thing
  --conn N            only this connection
  --key K             ops, regions: only this key
  --failed            ops: only what failed or is not whole
  -w, --write DIR     regions, messages, streams, rpc: write the bytes into files there
  --at FRAME          regions: the content as it was after this frame
  --pcap OUT          rpc: write RPC over TCP for other tools
  --pair A:B          queue pairs with these numbers are the ends of a connection
  --expect-clean      check: what is only worth a note counts as well
  --no-icrc           do not check RoCE's invariant CRC
  --memory MIB        for packets that wait for others (64)
  -q, --quiet         no progress on a terminal
  -h, --help, -V, --version
";

pub(crate) fn parse(mut arguments: Parser) -> Result<Options, Otherwise> {
    let mut command = None;
    let mut options = Options {
        command: Command::Info,
        files: Vec::new(),
        json: false,
        quiet: false,
        connection: None,
        key: None,
        failed: false,
        folder: None,
        at: None,
        pcap: None,
        pairs: Vec::new(),
        expect_clean: false,
        config: Config::default(),
    };
    while let Some(argument) = arguments.next()? {
        match argument {
            Arg::Value(name) if command.is_none() => {
                let name = name.string()?;
                let found = Command::ALL.iter().find(|(known, _)| *known == name);
                let Some((_, found)) = found else {
                    return Err(Otherwise::Wrong(format!("no command {name}")));
                };
                command = Some(*found);
            }
            Arg::Value(path) => options.files.push(path.into()),
            Arg::Long("json") => options.json = true,
            Arg::Long("conn") => options.connection = Some(arguments.value()?.parse()?),
            Arg::Long("key") => options.key = Some(arguments.value()?.parse_with(number)?),
            Arg::Long("failed") => options.failed = true,
            Arg::Short('w') | Arg::Long("write") => options.folder = Some(arguments.value()?.into()),
            Arg::Long("at") => options.at = Some(arguments.value()?.parse()?),
            Arg::Long("pcap") => options.pcap = Some(arguments.value()?.into()),
            Arg::Long("pair") => options.pairs.push(arguments.value()?.parse_with(pair)?),
            Arg::Long("expect-clean") => options.expect_clean = true,
            Arg::Long("no-icrc") => options.config.check_icrc = false,
            Arg::Long("memory") => {
                let mebibytes: usize = arguments.value()?.parse()?;
                options.config.memory = mebibytes.saturating_mul(1 << 20);
            }
            Arg::Short('q') | Arg::Long("quiet") => options.quiet = true,
            Arg::Short('h') | Arg::Long("help") => return Err(Otherwise::Help),
            Arg::Short('V') | Arg::Long("version") => return Err(Otherwise::Version),
            other => return Err(other.unexpected().into()),
        }
    }
    options.command = command.ok_or_else(|| Otherwise::Wrong("no command".into()))?;
    if let Some(option) = options.of_others() {
        return Err(Otherwise::Wrong(format!("{} has no {option}", options.command.name())));
    }
    if options.files.is_empty() {
        return Err(Otherwise::Wrong("no file".into()));
    }
    Ok(options)
}

/// Two numbers.
fn pair(text: &str) -> Result<(u32, u32), String> {
    let (a, b) = text.split_once(':').ok_or("two numbers with a colon in between are needed")?;
    let number = |text| number(text).map_err(|error| error.to_string());
    Ok((number(a)?, number(b)?))
}

/// A number, hexadecimal behind 0x.
fn number(text: &str) -> Result<u32, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    }
}
