//! Shared by the tests that start the C programs of `ffi-tests/`: builds these programs and the provider, sets
//! libfabric's environment variables so that it finds the provider, and starts both ends of a copy.

#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod tshark;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that a program may run.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The folder with the provider. The first call builds it as the test is built: Cargo builds no C library for tests.
fn provider_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let own = env::current_exe().expect("the test has a path");
        // ROOT/PROFILE/deps/TEST
        let folder = own.ancestors().nth(2).expect("the test is in a folder of a profile");
        let profile = folder.file_name().expect("the profile has a name");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--offline", "--package", "rstream", "--lib"]);
        cargo.arg("--profile").arg(if profile == "debug" { "dev".as_ref() } else { profile });
        cargo.arg("--target-dir").arg(folder.join(".."));
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo starts");
        assert!(built.status.success(), "cargo: {}", String::from_utf8_lossy(&built.stderr));
        folder.to_path_buf()
    })
}

/// The folder with the C programs, which the first call builds.
pub(crate) fn programs() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("ffi-tests");
        let folder = scratch_root().join("c");
        let made = Command::new("make")
            .arg("-C")
            .arg(&sources)
            .arg(format!("BUILD={}", folder.display()))
            .env_remove("MAKEFLAGS")
            .output()
            .expect("make starts (scripts/setup.sh installs it)");
        assert!(made.status.success(), "make: {}", String::from_utf8_lossy(&made.stderr));
        folder
    })
}

/// Cargo's folder for files that the tests write.
fn scratch_root() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// An empty folder for one test.
pub(crate) fn scratch(test: &str) -> PathBuf {
    let folder = scratch_root().join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

/// A C program, run with stock libfabric and the provider.
pub(crate) fn program(name: &str) -> Command {
    with_provider(Command::new(programs().join(name)))
}

/// Sets libfabric's environment variables so that it finds the provider.
pub(crate) fn with_provider(mut command: Command) -> Command {
    command.env("FI_PROVIDER_PATH", provider_folder()).env("FI_PROVIDER", "rstream");
    command
}

/// A file of `length` pseudo-random bytes.
pub(crate) fn sample_file(folder: &Path, length: usize) -> PathBuf {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    })
    .take(length)
    .collect();
    let path = folder.join("sample");
    fs::write(&path, bytes).expect("a sample file");
    path
}

/// A running program, which is killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    name: String,
}

impl Running {
    /// Starts it.
    pub(crate) fn start(mut command: Command, name: &str) -> Self {
        let child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { child, name: name.to_owned() }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its standard error. Can be taken once.
    pub(crate) fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().expect("standard error is a pipe")
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> std::process::ExitStatus {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().expect("the state of a child") {
                return status;
            }
            assert!(Instant::now() < until, "{} still runs after {TIMEOUT:?}", self.name);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for its end. Returns also its standard output.
    pub(crate) fn output(mut self) -> (std::process::ExitStatus, String) {
        let mut text = String::new();
        if let Some(mut stdout) = self.child.stdout.take() {
            stdout.read_to_string(&mut text).expect("text on standard output");
        }
        (self.finish(), text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both do nothing if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A listening `stream_copy recv`.
pub(crate) struct Receiver {
    running: Running,
    /// The port that it chose.
    pub(crate) port: u16,
}

impl Receiver {
    /// Starts it on a free port. `command` runs `stream_copy`, possibly in another namespace.
    pub(crate) fn start(mut command: Command, arguments: &[&str]) -> Self {
        command
            .arg("recv")
            .args(["-p", "0", "-q"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut running = Running::start(command, "stream_copy recv");
        let mut lines = BufReader::new(running.stderr()).lines();
        let first = lines.next().and_then(Result::ok).unwrap_or_default();
        let port = first.rsplit(' ').next().and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("stream_copy recv printed {first:?}"));
        // The test's output shows its other lines if the test fails.
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("recv: {line}")));
        Self { running, port }
    }

    /// Waits for its end. Returns the checksum that it printed.
    pub(crate) fn checksum(self) -> String {
        let (status, text) = self.running.output();
        assert!(status.success(), "stream_copy recv: {status}: {text}");
        checksum_in(&text)
    }

    /// Waits for its end. Returns its exit status.
    pub(crate) fn status(self) -> std::process::ExitStatus {
        self.running.finish()
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.running.id()
    }
}

/// Runs `stream_copy send`.
pub(crate) fn send(mut command: Command, port: u16, host: &str, arguments: &[&str]) -> Output {
    command.args(["send", "-q", "-p", &port.to_string()]).args(arguments).arg(host);
    command.output().expect("stream_copy send starts")
}

/// The checksum that the sender printed. Its exit status must be success.
pub(crate) fn sent_checksum(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "stream_copy send: {}: {text}{errors}", output.status);
    checksum_in(&text)
}

fn checksum_in(text: &str) -> String {
    let (_, checksum) =
        text.trim_end().rsplit_once("checksum ").unwrap_or_else(|| panic!("no checksum in {text:?}"));
    checksum.to_owned()
}

/// Whether two files have the same bytes.
pub(crate) fn same_content(one: &Path, other: &Path) -> bool {
    fs::read(one).expect("a readable file") == fs::read(other).expect("a readable file")
}
