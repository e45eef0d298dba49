//! What is measured: ways to carry a byte stream, with the sizes of their rings, and ways to carry messages.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::job::Test;
use crate::size;

/// A way and its sizes. Written as `rstream:512k:1024`, the way and then what is not left to its defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    pub(crate) way: Way,
    pub(crate) rings: Rings,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// The provider as it chooses by itself.
    Rstream,
    /// The provider without shared memory between the processes of one host.
    RstreamIwarp,
    /// Messages and remote memory access over the provider.
    RstreamMsg,
    /// The same over libfabric's own provider for TCP.
    TcpMsg,
    Tcp,
    Unix,
    /// The crate `rstream-ring` by itself.
    RstreamRing,
    /// A bare ring of bytes in shared memory.
    Ring,
    /// One cache line.
    Line,
}

/// Sizes that are chosen; the rest is the default of who has them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rings {
    /// Of each of the two rings.
    pub(crate) bytes: Option<usize>,
    /// Entries of each of the two queues.
    pub(crate) messages: Option<usize>,
}

const NAMES: &[(Way, &str)] = &[
    (Way::Rstream, "rstream"),
    (Way::RstreamIwarp, "rstream-iwarp"),
    (Way::RstreamMsg, "rstream-msg"),
    (Way::TcpMsg, "tcp-msg"),
    (Way::Tcp, "tcp"),
    (Way::Unix, "unix"),
    (Way::RstreamRing, "rstream-ring"),
    (Way::Ring, "ring"),
    (Way::Line, "line"),
];

const RING_MOST: usize = 1 << 30;

impl Candidate {
    /// Whether it can do this at all.
    pub(crate) fn suits(&self, test: Test, sleeps: bool) -> bool {
        match self.way {
            Way::RstreamMsg | Way::TcpMsg => test != Test::Bidirectional,
            _ if test.is_of_messages() => false,
            Way::Rstream | Way::RstreamIwarp | Way::RstreamRing | Way::Tcp | Way::Unix => true,
            Way::Ring => !sleeps && test != Test::Connections,
            Way::Line => !sleeps && test == Test::Pingpong,
        }
    }

    /// Whether two threads of a side can use one stream at the same time.
    pub(crate) fn has_threads(&self) -> bool {
        !matches!(self.way, Way::RstreamRing | Way::Ring | Way::Line)
    }

    /// Whether it carries from one host to another.
    pub(crate) fn leaves_the_host(&self) -> bool {
        self.provider().is_some() || self.way == Way::Tcp
    }

    /// The provider of libfabric that carries it.
    pub(crate) fn provider(&self) -> Option<&'static str> {
        match self.way {
            Way::Rstream | Way::RstreamIwarp | Way::RstreamMsg => Some("rstream"),
            Way::TcpMsg => Some("tcp"),
            Way::Tcp | Way::Unix | Way::RstreamRing | Way::Ring | Way::Line => None,
        }
    }

    /// What the environment of its processes must say.
    pub(crate) fn environment(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let shared_memory = (self.way == Way::RstreamIwarp).then_some(("FI_RSTREAM_SHM", "0"));
        // Only the provider that is measured is loaded.
        let provider = self.provider().map(|name| ("FI_PROVIDER", name));
        shared_memory.into_iter().chain(provider)
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(way, _)| *way == self.way).map_or("", |(_, name)| name);
        let Rings { bytes, messages } = self.rings;
        f.write_str(name)?;
        if bytes.is_some() || messages.is_some() {
            write!(f, ":{}", bytes.map_or_else(String::new, size::text))?;
        }
        messages.map_or(Ok(()), |messages| write!(f, ":{messages}"))
    }
}

impl FromStr for Candidate {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let Some(&(way, _)) = NAMES.iter().find(|(_, known)| *known == name) else {
            let known: Vec<_> = NAMES.iter().map(|(_, name)| *name).collect();
            bail!("nothing is called '{name}': there are {}", known.join(", "));
        };
        let bytes = parts.next().filter(|part| !part.is_empty()).map(size::parse).transpose()?;
        let messages = parts.next().map(|part| part.parse().context("entries of the queues")).transpose()?;
        let most = match way {
            Way::Rstream | Way::RstreamIwarp => 2,
            Way::RstreamRing | Way::Ring => 1,
            Way::RstreamMsg | Way::TcpMsg | Way::Tcp | Way::Unix | Way::Line => 0,
        };
        ensure!(text.matches(':').count() <= most, "'{name}' has no such sizes as '{text}' gives");
        ensure!(bytes.is_none_or(|bytes| bytes <= RING_MOST), "rings of at most {}", size::text(RING_MOST));
        Ok(Self { way, rings: Rings { bytes, messages } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_alike() {
        for text in [
            "rstream",
            "rstream-iwarp:512K",
            "rstream:1M:4096",
            "rstream::64",
            "rstream-msg",
            "tcp-msg",
            "tcp",
            "unix",
            "rstream-ring:20K",
            "ring:256K",
            "line",
        ] {
            assert_eq!(text.parse::<Candidate>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "",
            "udp",
            "tcp:1M",
            "tcp-msg:1M",
            "line:64",
            "rstream:0",
            "rstream:1M:4:5",
            "ring:1M:4",
            "rstream:9G",
        ] {
            assert!(text.parse::<Candidate>().is_err(), "{text}");
        }
    }

    #[test]
    fn yardsticks_stand_aside_where_they_measure_nothing() {
        let line: Candidate = "line".parse().unwrap();
        assert!(line.suits(Test::Pingpong, false));
        assert!(!line.suits(Test::Pingpong, true) && !line.suits(Test::Bandwidth, false));
        let ring: Candidate = "ring".parse().unwrap();
        assert!(ring.suits(Test::Rate, false) && !ring.suits(Test::Connections, false));
    }

    #[test]
    fn remote_memory_is_accessed_by_messages_only() {
        for (_, name) in NAMES {
            let candidate: Candidate = name.parse().unwrap();
            let is_of_messages = name.ends_with("-msg");
            assert_eq!(candidate.suits(Test::Write, false), is_of_messages, "{name}");
            assert_eq!(candidate.suits(Test::Read, true), is_of_messages, "{name}");
            assert!(!(is_of_messages && candidate.suits(Test::Bidirectional, false)), "{name}");
        }
    }

    #[test]
    fn each_candidate_loads_its_own_provider() {
        let environment = |name: &str| name.parse::<Candidate>().unwrap().environment().collect::<Vec<_>>();
        assert_eq!(environment("rstream-iwarp"), [("FI_RSTREAM_SHM", "0"), ("FI_PROVIDER", "rstream")]);
        assert_eq!(environment("tcp-msg"), [("FI_PROVIDER", "tcp")]);
        assert_eq!(environment("tcp"), []);
    }
}
