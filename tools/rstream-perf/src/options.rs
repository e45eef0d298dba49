//! The command line.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::*;

use crate::candidate::Candidate;
use crate::job::{SIZE_MOST, Test};
use crate::partner::Partner;
use crate::size;
use crate::worker::{Role, Work};

/// The command by which this program starts itself.
pub(crate) const WORKER: &str = "worker";

const HELP: &str = include_str!("help.txt");
const PORT: u16 = 7472;

pub(crate) enum Command {
    /// Help or version.
    Say(String),
    Measure(Box<Options>),
    /// At the first of these that the system has.
    Serve(Vec<SocketAddr>),
    Work(Box<Work>),
}

/// What to measure and how.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) partner: Partner,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) tests: Vec<Test>,
    /// Message sizes, unless each test takes its usual one.
    pub(crate) sizes: Option<Vec<usize>>,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) sleeps: bool,
    /// Whether each side has a thread for each direction.
    pub(crate) threads: bool,
    pub(crate) connections: usize,
    pub(crate) processors: Option<[usize; 2]>,
    /// Whom the others are compared with.
    pub(crate) against: Option<Candidate>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) svg: Option<PathBuf>,
    pub(crate) quiet: bool,
}

impl Options {
    fn new(partner: Partner) -> Self {
        Self {
            partner,
            candidates: Vec::new(),
            tests: vec![Test::Bandwidth, Test::Pingpong, Test::Rate],
            sizes: None,
            rounds: 5,
            seconds: 0.5,
            sleeps: false,
            threads: false,
            connections: 100,
            processors: None,
            against: None,
            json: None,
            svg: None,
            quiet: false,
        }
    }
}

impl Command {
    pub(crate) fn from_arguments() -> Result<Self> {
        Self::parse(lexopt::Parser::from_env()).context("see rstream-perf --help")
    }

    fn parse(mut arguments: lexopt::Parser) -> Result<Self> {
        let mut address = None;
        let mut port = PORT;
        let mut words = Vec::new();
        let mut options = Options::new(Partner::Here(Ipv4Addr::LOCALHOST.into()));
        while let Some(argument) = arguments.next()? {
            let option = match argument {
                Value(word) => {
                    words.push(word.string()?);
                    continue;
                }
                Short(letter) => format!("-{letter}"),
                Long(name) => format!("--{name}"),
            };
            match option.as_str() {
                "-h" | "--help" => return Ok(Self::Say(HELP.to_owned())),
                "-V" | "--version" => {
                    return Ok(Self::Say(format!("rstream-perf {}\n", env!("CARGO_PKG_VERSION"))));
                }
                "-a" | "--address" => address = Some(arguments.value()?.parse::<IpAddr>()?),
                "-p" | "--port" => port = arguments.value()?.parse()?,
                option => options.take(option, &mut arguments)?,
            }
        }
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        match words[..] {
            [] | ["run"] => options.partner = Partner::Here(address.unwrap_or(Ipv4Addr::LOCALHOST.into())),
            ["client", host] => options.partner = Partner::There(resolve(host, port)?),
            ["server"] => {
                let every = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
                let addresses = address.map_or(every.to_vec(), |address| vec![address]);
                return Ok(Self::Serve(addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()));
            }
            [WORKER, address, job, ref target @ ..] => return work(address, job, target),
            _ => bail!("'{}' is no command", words.join(" ")),
        }
        options.complete()?;
        Ok(Self::Measure(Box::new(options)))
    }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    let mut found = (host, port).to_socket_addrs().with_context(|| format!("host {host}"))?;
    found.next().with_context(|| format!("host {host} has no address"))
}

fn work(address: &str, job: &str, target: &[&str]) -> Result<Command> {
    let role = match target {
        [] => Role::Passive,
        target => Role::Active(target.concat()),
    };
    Ok(Command::Work(Box::new(Work { address: address.parse()?, job: serde_json::from_str(job)?, role })))
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut lexopt::Parser) -> Result<()> {
        match option {
            "-o" | "--over" => self.candidates = list(&arguments.value()?.string()?)?,
            "-t" | "--test" => self.tests = list(&arguments.value()?.string()?)?,
            "-s" | "--size" => self.sizes = Some(size::parse_list(&arguments.value()?.string()?)?),
            "-r" | "--rounds" => self.rounds = arguments.value()?.parse()?,
            "-d" | "--seconds" => self.seconds = arguments.value()?.parse()?,
            "-n" | "--connections" => self.connections = arguments.value()?.parse()?,
            "--sleep" => self.sleeps = true,
            "--threads" => {
                self.threads = true;
                self.tests = vec![Test::Bidirectional];
            }
            "--processors" => {
                let two: Vec<_> = list(&arguments.value()?.string()?)?;
                self.processors = Some(two[..].try_into().context("--processors takes two numbers")?);
            }
            "--against" => self.against = Some(arguments.value()?.parse_with(str::parse)?),
            "--json" => self.json = Some(arguments.value()?.into()),
            "--svg" => self.svg = Some(arguments.value()?.into()),
            "-q" | "--quiet" => self.quiet = true,
            _ => bail!("'{option}' is no option"),
        }
        Ok(())
    }

    /// Fills in what depends on other options, and refuses what does not fit together.
    fn complete(&mut self) -> Result<()> {
        let one_host = matches!(self.partner, Partner::Here(_));
        if self.candidates.is_empty() {
            self.candidates = list(if self.tests.iter().all(|test| test.is_of_messages()) {
                "rstream-msg,tcp-msg"
            } else if one_host {
                "rstream,tcp,unix"
            } else {
                "rstream,tcp"
            })?;
        }
        if let Some(stays) =
            self.candidates.iter().find(|candidate| !one_host && !candidate.leaves_the_host())
        {
            bail!("{stays} stays on one host");
        }
        if self.against.is_none() {
            let usual: Vec<Candidate> = list("tcp,tcp-msg")?;
            self.against = usual.into_iter().find(|candidate| self.candidates.contains(candidate));
        }
        if let Some(against) = self.against.filter(|against| !self.candidates.contains(against)) {
            bail!("--against {against}, which is not measured");
        }
        ensure!(self.rounds > 0, "at least one round");
        ensure!(
            !self.threads || self.tests == [Test::Bidirectional],
            "--threads is for the test {}",
            Test::Bidirectional
        );
        let largest = self.sizes.iter().flatten().max();
        ensure!(
            largest.is_none_or(|size| *size <= SIZE_MOST),
            "messages of at most {}",
            size::text(SIZE_MOST)
        );
        Ok(())
    }
}

/// Values with commas between.
fn list<T>(text: &str) -> Result<Vec<T>>
where
    T: std::str::FromStr<Err: Into<anyhow::Error>>,
{
    text.split(',').map(|part| part.parse().map_err(Into::into)).collect()
}

#[cfg(test)]
impl Options {
    /// For tests of what is done with a run.
    pub(crate) fn example() -> Self {
        let candidates = list("rstream:512k,tcp").unwrap();
        Self {
            candidates,
            tests: vec![Test::Bandwidth],
            ..Self::new(Partner::Here(Ipv4Addr::LOCALHOST.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command> {
        Command::parse(lexopt::Parser::from_iter(["rstream-perf"].into_iter().chain(line.split_whitespace())))
    }

    fn options(line: &str) -> Options {
        match parse(line).unwrap() {
            Command::Measure(options) => *options,
            _ => panic!("{line} is a measurement"),
        }
    }

    #[test]
    fn without_options_both_sides_are_here() {
        let options = options("");
        assert!(matches!(options.partner, Partner::Here(address) if address.is_loopback()));
        assert_eq!(options.candidates.len(), 3);
        assert_eq!(options.against, Some("tcp".parse().unwrap()));
        assert_eq!(options.rounds, 5);
    }

    #[test]
    fn options_are_taken() {
        let options = options(
            "run -o rstream:1M,ring -t pingpong -s 64..256 -r 2 -d 0.1 --sleep --processors 1,0 --against ring",
        );
        assert_eq!(options.candidates[0].to_string(), "rstream:1M");
        assert_eq!(options.tests, [Test::Pingpong]);
        assert_eq!(options.sizes, Some(vec![64, 128, 256]));
        assert_eq!((options.rounds, options.seconds, options.sleeps), (2, 0.1, true));
        assert_eq!(options.processors, Some([1, 0]));
        assert_eq!(options.against.unwrap().to_string(), "ring");
    }

    #[test]
    fn messages_are_compared_with_messages() {
        let options = options("-t write,read");
        assert_eq!(options.candidates, list::<Candidate>("rstream-msg,tcp-msg").unwrap());
        assert_eq!(options.against.unwrap().to_string(), "tcp-msg");
    }

    #[test]
    fn threads_are_for_both_directions() {
        let both = options("--threads");
        assert!(both.threads && both.tests == [Test::Bidirectional]);
        assert!(parse("--threads -t rate").is_err());
    }

    #[test]
    fn another_host_is_only_reached_by_what_leaves_this_one() {
        let options = options("client 127.0.0.1 -p 99");
        assert!(matches!(options.partner, Partner::There(server) if server.port() == 99));
        assert_eq!(options.candidates.len(), 2);
        assert!(parse("client 127.0.0.1 -o unix").is_err());
        assert!(matches!(parse("server -p 99").unwrap(), Command::Serve(at) if at[0].port() == 99));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "walk",
            "client",
            "-r 0",
            "-s 1G",
            "--against line",
            "--processors 1",
            "-o udp",
            "-t speed",
            "--fast",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
