//! A line of a file of rules.

use std::time::Duration;

use super::pattern::{Glob, Place, number};
use super::{Ends, Options};
use crate::stream::{Role, WINDOWS};

/// What a line says, but for the programs that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// `None`: both.
    role: Option<Role>,
    local: Place,
    remote: Place,
    /// `None`: it stays on TCP.
    options: Option<Options>,
}

/// The longest look before a sleep that can be asked for.
const LONGEST_SPIN: Duration = Duration::from_millis(10);
/// The most turns after which the sides meet.
const MOST_TURNS: u32 = 1 << 20;

/// Reads a line: the programs that it is for, and its rule, or what is wrong with it. `None`: it says
/// nothing.
#[allow(clippy::type_complexity, reason = "it is used once")]
pub(super) fn read(line: &str) -> Result<Option<(Vec<Glob>, Rule)>, (Vec<Glob>, String)> {
    let mut words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
    let Some(programs) = words.next() else { return Ok(None) };
    let programs: Vec<_> = programs.split(',').map(Glob::new).collect();
    match rule(words) {
        Ok(rule) => Ok(Some((programs, rule))),
        Err(what) => Err((programs, what)),
    }
}

fn rule<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Rule, String> {
    let mut next = |what: &str| words.next().ok_or_else(|| format!("{what} is missing"));
    let role = match next("the direction")? {
        "any" => None,
        "connect" => Some(Role::Active),
        "listen" => Some(Role::Passive),
        other => return Err(format!("'{other}' is no direction: connect, listen or any")),
    };
    let local = Place::parse(next("the local address")?)?;
    let remote = Place::parse(next("the remote address")?)?;
    let is_tcp = match next("what to use")? {
        "shm" => false,
        "tcp" => true,
        other => return Err(format!("'{other}' cannot be used: shm or tcp")),
    };
    let options = words.try_fold(Options::default(), |options, word| match is_tcp {
        true => Err(format!("'{word}': tcp has no options")),
        false => option(options, word),
    })?;
    Ok(Rule { role, local, remote, options: (!is_tcp).then_some(options) })
}

fn option(mut options: Options, word: &str) -> Result<Options, String> {
    let (name, value) = word.split_once('=').ok_or_else(|| format!("'{word}' is no option"))?;
    let is_new = match name {
        "window" => options.window.replace(window(value)?).is_none(),
        "after" => options.after.replace(turns(value)?).is_none(),
        "spin" => options.spin.replace(time(value)?).is_none(),
        _ => return Err(format!("'{name}' is no option: window, after or spin")),
    };
    if is_new { Ok(options) } else { Err(format!("'{name}' stands twice")) }
}

fn window(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => (text, 1),
    };
    let bytes = number::<usize>(digits).and_then(|number| number.checked_mul(unit));
    bytes
        .filter(|bytes| WINDOWS.contains(bytes) && bytes.is_power_of_two())
        .ok_or_else(|| format!("'{text}' is no window: 16K, 32K, 64K, 128K, 256K or 512K"))
}

fn turns(text: &str) -> Result<u32, String> {
    let turns = number(text).filter(|&turns| turns <= MOST_TURNS);
    turns.ok_or_else(|| format!("'{text}' is no number of turns: 0 to {MOST_TURNS}"))
}

fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let nanoseconds = match &text[digits.len()..] {
        "ms" => 1_000_000,
        "us" => 1000,
        "" if digits == "0" => 1,
        _ => return Err(format!("'{text}' is no time: a number and us or ms, or 0")),
    };
    let time = number::<u64>(digits).and_then(|number| number.checked_mul(nanoseconds));
    let time = time.map(Duration::from_nanos).filter(|time| *time <= LONGEST_SPIN);
    time.ok_or_else(|| format!("'{text}' is no time up to 10ms"))
}

impl Rule {
    /// Everything stays on TCP.
    pub(super) fn tcp() -> Self {
        Self { role: None, local: Place::ANY, remote: Place::ANY, options: None }
    }

    pub(super) fn is_tcp(&self) -> bool {
        self.options.is_none()
    }

    pub(super) fn options(&self) -> Option<Options> {
        self.options
    }

    pub(super) fn needs_ends(&self) -> bool {
        !self.local.is_any() || !self.remote.is_any()
    }

    /// Whether it matches everything.
    pub(super) fn is_last(&self) -> bool {
        self.role.is_none() && !self.needs_ends()
    }

    pub(super) fn matches(&self, role: Role, ends: Ends) -> bool {
        self.role.is_none_or(|own| own == role)
            && match ends {
                Ends::Known(local, remote) => self.local.matches(local) && self.remote.matches(remote),
                Ends::Unknown => !self.needs_ends() || self.is_tcp(),
            }
    }
}
