//! Which connections are upgraded: rules, of which the first that matches counts.
//!
//! ```text
//! # program      direction  local   remote         use  options
//! redis-*        listen     *:6379  *              shm  window=128K after=2
//! *              connect    *       10.1.0.0/16:*  tcp
//! ```
//!
//! A line that cannot be understood counts as `tcp` for every connection of the programs that it names: what
//! it was to forbid stays forbidden. A connection that no rule matches is upgraded.

mod line;
mod pattern;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use line::{Rule, read};
use pattern::{Glob, is_named};

use crate::stream::Role;

/// Programs that forbid themselves system calls which this library makes: only a rule that names them,
/// without a wildcard, upgrades their connections.
const NEVER: [&str; 4] = ["sshd", "sshd-session", "sshd-auth", "vsftpd"];

/// The names of a program: of its file, and by which it was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program(Vec<String>);

/// The rules for a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    program: Program,
    rules: Vec<Rule>,
}

/// A line that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// How a connection is upgraded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// The most bytes of a ring that are in use.
    pub window: Option<usize>,
    /// Calls after which the sides meet.
    pub after: Option<u32>,
    /// How long a call looks before it sleeps.
    pub spin: Option<Duration>,
}

/// What is known of a connection to choose by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// The addresses, this side's first.
    Known(SocketAddr, SocketAddr),
    /// They are not known.
    Unknown,
}

impl Program {
    /// A program with these names, or the last parts of these paths.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let name = |path: &'a str| path.rsplit('/').next().unwrap_or(path).to_owned();
        Self(paths.into_iter().map(name).filter(|name| !name.is_empty()).collect())
    }

    /// Whether one of the patterns is for it. `is_rule`: a rule of a file, not one that forbids.
    fn is_meant(&self, patterns: &[Glob], forbids: bool) -> bool {
        let is_never = self.0.iter().any(|name| NEVER.contains(&name.as_str()));
        if is_never && !forbids {
            return patterns.iter().any(|pattern| self.0.iter().any(|name| is_named(pattern, name)));
        }
        patterns.iter().any(|pattern| pattern.is_all() || self.0.iter().any(|name| pattern.matches(name)))
    }
}

impl Settings {
    /// Without any rule.
    #[must_use]
    pub fn new(program: Program) -> Self {
        Self { program, rules: Vec::new() }
    }

    /// Adds the rules of a file behind those that are there. Returns the lines that cannot be understood and
    /// may be meant for this program.
    pub fn add(&mut self, text: &str) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let (programs, rule) = match read(line) {
                Ok(None) => continue,
                Ok(Some((programs, rule))) => (programs, Ok(rule)),
                Err((programs, what)) => (programs, Err(what)),
            };
            let forbids = rule.as_ref().map_or(true, Rule::is_tcp);
            if !self.program.is_meant(&programs, forbids) {
                continue;
            }
            match rule {
                Ok(rule) => self.rules.push(rule),
                Err(what) => {
                    faults.push(Fault { line: number, what });
                    self.forbid_rest();
                }
            }
        }
        faults
    }

    /// Connections that no rule matches so far stay on TCP: what is said of them cannot be read.
    pub fn forbid_rest(&mut self) {
        self.rules.push(Rule::tcp());
    }

    /// Whether the choice depends on addresses.
    #[must_use]
    pub fn needs_ends(&self) -> bool {
        self.rules.iter().take_while(|rule| !rule.is_last()).any(Rule::needs_ends)
    }

    /// How a connection is upgraded. `None`: it stays on TCP. An address that is not known may be any: a rule
    /// that forbids matches it, another does not.
    #[must_use]
    pub fn choose(&self, role: Role, ends: Ends) -> Option<Options> {
        match self.rules.iter().find(|rule| rule.matches(role, ends)) {
            Some(rule) => rule.options(),
            None if self.program.0.iter().any(|name| NEVER.contains(&name.as_str())) => None,
            None => Some(Options::default()),
        }
    }
}
