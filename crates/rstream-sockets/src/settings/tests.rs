use std::net::SocketAddr;
use std::time::Duration;

use super::pattern::{Glob, Place};
use super::{Ends, Fault, Options, Program, Settings};
use crate::stream::Role;

fn settings(program: &str, text: &str) -> (Settings, Vec<Fault>) {
    let mut settings = Settings::new(Program::new([program]));
    let faults = settings.add(text);
    (settings, faults)
}

fn ends(local: &str, remote: &str) -> Ends {
    Ends::Known(local.parse().unwrap(), remote.parse().unwrap())
}

fn is_upgraded(text: &str, role: Role, local: &str, remote: &str) -> bool {
    let (settings, faults) = settings("program", text);
    assert_eq!(faults, [], "{text}");
    settings.choose(role, ends(local, remote)).is_some()
}

#[test]
fn without_rules_all_but_a_few_programs_are_upgraded() {
    for (program, expected) in
        [("redis-server", true), ("sshd", false), ("sshd-session", false), ("vsftpd", false)]
    {
        let (settings, _) = settings(program, "# nothing\n\n   \t# more\n");
        for role in [Role::Active, Role::Passive] {
            assert_eq!(settings.choose(role, Ends::Unknown).is_some(), expected, "{program}");
        }
        assert!(!settings.needs_ends());
    }
}

#[test]
fn only_a_rule_that_names_them_upgrades_them() {
    for (line, expected) in [
        ("* any * * shm", false),
        ("ssh* any * * shm", false),
        ("ssh? any * * shm", false),
        ("redis,sshd any * * shm", true),
    ] {
        assert_eq!(
            settings("/usr/sbin/sshd", line).0.choose(Role::Passive, Ends::Unknown).is_some(),
            expected,
            "{line}"
        );
    }
}

#[test]
fn the_first_match_counts() {
    let text = "program listen *:6379 * shm\nother any * * shm\nprogram any * * tcp\n* any * * shm\n";
    assert!(is_upgraded(text, Role::Passive, "127.0.0.1:6379", "127.0.0.1:40000"));
    assert!(!is_upgraded(text, Role::Active, "127.0.0.1:6379", "127.0.0.1:40000"));
    assert!(!is_upgraded(text, Role::Passive, "127.0.0.1:6380", "127.0.0.1:40000"));
}

#[test]
fn programs_are_patterns_of_either_name() {
    let program = || Program::new(["/usr/bin/python3.11", "/srv/bin/server.py"]);
    for (pattern, expected) in [
        ("python3*", true),
        ("server.py", true),
        ("python3.1?", true),
        ("python", false),
        ("x,server*", true),
        ("*", true),
    ] {
        let mut settings = Settings::new(program());
        settings.add(&format!("{pattern} any * * tcp"));
        assert_eq!(settings.choose(Role::Active, Ends::Unknown).is_none(), expected, "{pattern}");
    }
}

#[test]
fn stars_match_any_characters() {
    for (pattern, name, expected) in [
        ("*", "", true),
        ("", "", true),
        ("", "a", false),
        ("a*b*c", "a12b34c", true),
        ("a*b*c", "a12b34", false),
        ("**a", "bba", true),
        ("?", "ä", true),
        ("?", "", false),
        ("*a?", "xxay", true),
        ("a", "ab", false),
    ] {
        assert_eq!(Glob::new(pattern).matches(name), expected, "{pattern} {name}");
    }
    let long = "a".repeat(2000);
    assert!(!Glob::new(&format!("{}b", "*a".repeat(500))).matches(&long));
}

#[test]
fn addresses_have_prefixes_and_ports() {
    for (pattern, end, expected) in [
        ("*", "[::1]:1", true),
        ("*:80", "10.0.0.1:80", true),
        ("*:80", "10.0.0.1:81", false),
        ("*:8000-8999", "10.0.0.1:8999", true),
        ("*:8000-8999", "10.0.0.1:9000", false),
        ("127.0.0.1", "127.0.0.1:5", true),
        ("127.0.0.1:*", "127.0.0.2:5", false),
        ("10.1.0.0/16:*", "10.1.255.255:1", true),
        ("10.1.0.0/16:*", "10.2.0.0:1", false),
        ("0.0.0.0/0", "10.2.0.0:1", true),
        ("0.0.0.0/0", "[::1]:1", false),
        ("127.0.0.1", "[::ffff:127.0.0.1]:1", true),
        ("[::ffff:127.0.0.1]", "127.0.0.1:1", true),
        ("[::1]:80", "[::1]:80", true),
        ("[fe80::]/10:80", "[fe90::1]:80", true),
        ("[fe80::]/10:80", "[ff80::1]:80", false),
        ("[::]/0", "[ff80::1]:80", true),
    ] {
        let end: SocketAddr = end.parse().unwrap();
        assert_eq!(Place::parse(pattern).unwrap().matches(end), expected, "{pattern} {end}");
    }
    for pattern in [
        "",
        ":",
        "localhost",
        "1.2.3",
        "1.2.3.4/33",
        "1.2.3.4/",
        "1.2.3.4:",
        "*:70000",
        "*:9-8",
        "*/8",
        "::1",
        "[::1",
        "[1.2.3.4]",
        "[::1]x",
        "[::1]/129",
        "*:+1",
        "*:-",
    ] {
        assert!(Place::parse(pattern).is_err(), "{pattern}");
    }
}

#[test]
fn options_are_read() {
    let (settings, faults) = settings("program", "* any * * shm window=128K after=2 spin=20us");
    let options = Options { window: Some(128 << 10), after: Some(2), spin: Some(Duration::from_micros(20)) };
    assert_eq!((settings.choose(Role::Active, Ends::Unknown), faults), (Some(options), Vec::new()));
}

#[test]
fn a_faulty_line_forbids_what_it_may_be_about() {
    for line in [
        "program",
        "program any",
        "program any *",
        "program any * *",
        "program both * * shm",
        "program any nowhere * shm",
        "program any * 1.2.3.4.5 shm",
        "program any * * rdma,shm",
        "program any * * shm window=1",
        "program any * * shm window=48K",
        "program any * * shm window=99999999999999999999K",
        "program any * * shm after=x",
        "program any * * shm after=1 after=1",
        "program any * * shm spin=20",
        "program any * * shm spin=1s",
        "program any * * shm spin=99999999999999999999ms",
        "program any * * shm users=verified",
        "program any * * shm more",
        "program any * * tcp after=1",
    ] {
        let text = format!("program listen *:1 * shm\n{line}\nprogram any * * shm");
        let (found, faults) = settings("program", &text);
        assert_eq!(faults.len(), 1, "{line}");
        assert_eq!(faults[0].line, 2, "{line}");
        let of = |port: u16| found.choose(Role::Passive, ends(&format!("127.0.0.1:{port}"), "127.0.0.1:9"));
        // What a line before it allows stays allowed.
        assert_eq!((of(1).is_some(), of(2).is_some()), (true, false), "{line}");
        // Another program is not concerned.
        let (other, faults) = settings("other", &text);
        assert_eq!((faults.len(), other.choose(Role::Active, Ends::Unknown).is_some()), (0, true), "{line}");
    }
}

#[test]
fn an_address_that_is_not_known_may_be_any() {
    let (found, _) = settings("program", "program any *:1 * tcp");
    assert_eq!((found.choose(Role::Active, Ends::Unknown), found.needs_ends()), (None, true));
    let (found, _) = settings("program", "program any *:1 * shm after=1\nprogram any * * tcp");
    assert_eq!(found.choose(Role::Active, Ends::Unknown), None);
}

/// Numbers that a seed gives.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

/// Any text is read without a panic, and none makes connections of others than the programs that it names
/// depend on it.
#[test]
fn any_input_is_read() {
    const PARTS: [&str; 40] = [
        "program",
        "*",
        "?",
        ",",
        " ",
        "\t",
        "\n",
        "\r\n",
        "#",
        "any",
        "connect",
        "listen",
        "shm",
        "tcp",
        "rdma",
        "window=",
        "after=",
        "spin=",
        "16K",
        "512K",
        "20us",
        "1ms",
        "0",
        "18446744073709551616",
        "-",
        ":",
        "/",
        "[",
        "]",
        "::1",
        "127.0.0.1",
        "10.0.0.0/8",
        "=",
        "ä",
        "\u{0}",
        "\u{2028}",
        "65535",
        "65536",
        "*:80",
        "\u{feff}",
    ];
    const LINE: [&[&str]; 6] = [
        &["program", "*", "prog*", "program,x"],
        &["any", "connect", "listen", "none"],
        &["*", "*:80", "127.0.0.1", "[::1]:1-2", "10.0.0.0/8:*"],
        &["*", "*:*", "::1", "[::]/0"],
        &["shm", "tcp", "shm,tcp"],
        &["", "after=3", "window=64K", "spin=0", "spin=5us after=1", "window=1"],
    ];
    let (mut read, mut faulty) = (0, 0);
    for seed in 0..20_000 {
        let mut random = Random(seed);
        let mut text = String::new();
        if random.below(2) == 0 {
            for _ in 0..random.below(30) {
                text += PARTS[random.below(PARTS.len())];
            }
        } else {
            for choices in LINE {
                text += choices[random.below(choices.len())];
                text += [" ", "\t", "  "][random.below(3)];
            }
        }
        let (found, faults) = settings("program", &text);
        faulty += faults.len();
        for (role, ends) in [
            (Role::Active, Ends::Unknown),
            (Role::Passive, ends("127.0.0.1:80", "[::1]:1")),
            (Role::Active, ends("[::1]:2", "10.9.8.7:80")),
        ] {
            let chosen = found.choose(role, ends);
            read += usize::from(chosen.is_some_and(|options| options != Options::default()));
            // Nothing but rules that were understood allows something behind a fault.
            let before: usize = faults.first().map_or(usize::MAX, |fault| fault.line - 1);
            let first: Vec<_> = text.lines().take(before).collect();
            let (kept, _) = settings("program", &first.join("\n"));
            let is_decided = !faults.is_empty() && chosen.is_some();
            assert!(!is_decided || kept.choose(role, ends) == chosen, "{text:?}");
        }
    }
    assert!(read > 500 && faulty > 5000, "{read} {faulty}");
}
