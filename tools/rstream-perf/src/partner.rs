//! Workers as the driver sees them: started here as processes, or by a server on another host.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::job::{Job, Word};
use crate::options::WORKER;
use crate::worker::{Role, Work};

/// How long a client of the server may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest line that is read of another process.
const LINE_MOST: u64 = 64 << 10;
const LIBRARY: &str = "librstream_fi.so";

/// A worker at its work. One that was started here ends with this.
pub(crate) struct Worker {
    words: BufReader<Box<dyn Read>>,
    child: Option<Child>,
}

impl Worker {
    /// Starts one on this host.
    pub(crate) fn start(work: &Work) -> Result<Self> {
        let mut child =
            command(work)?.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("a worker")?;
        let output = child.stdout.take().context("a worker's output")?;
        Ok(Self { words: BufReader::new(Box::new(output)), child: Some(child) })
    }

    /// Has a server start the passive one.
    pub(crate) fn ask(server: SocketAddr, job: &Job) -> Result<Self> {
        let mut control = TcpStream::connect(server).with_context(|| format!("no server at {server}"))?;
        writeln!(control, "{}", serde_json::to_string(job)?)?;
        Ok(Self { words: BufReader::new(Box::new(control)), child: None })
    }

    /// What it says next.
    pub(crate) fn hear(&mut self) -> Result<Word> {
        let line = read_line(&mut self.words)?;
        match serde_json::from_str(&line).context("a worker speaks another version")? {
            Word::Failed(reason) => bail!(reason),
            word => Ok(word),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Nothing to do for one that has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Answers clients, one job after the other, for ever.
pub(crate) fn serve(addresses: &[SocketAddr]) -> Result<()> {
    let listener = TcpListener::bind(addresses).with_context(|| format!("listening on {addresses:?}"))?;
    eprintln!("listening on {}", listener.local_addr()?);
    loop {
        let (control, client) = listener.accept()?;
        match serve_one(control) {
            Ok(job) => {
                eprintln!("{client}: {} of {} over {}", job.test, crate::size::text(job.size), job.candidate)
            }
            Err(error) => eprintln!("{client}: {error:#}"),
        }
    }
}

/// A worker speaks to the client itself: its output is the connection.
fn serve_one(mut control: TcpStream) -> Result<Job> {
    control.set_read_timeout(Some(PATIENCE))?;
    let job: Job = serde_json::from_str(&read_line(&mut BufReader::new(&control))?).context("no job")?;
    job.check()?;
    if !job.candidate.leaves_the_host() {
        let refusal = Word::Failed(format!("{} stays on one host", job.candidate));
        writeln!(control, "{}", serde_json::to_string(&refusal)?)?;
        bail!("{} was asked for", job.candidate);
    }
    let address = control.local_addr()?.ip().to_canonical();
    let work = Work { address, job: job.clone(), role: Role::Passive };
    let mut child = command(&work)?.stdin(Stdio::null()).stdout(OwnedFd::from(control)).spawn()?;
    child.wait()?;
    Ok(job)
}

fn read_line(input: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    input.take(LINE_MOST).read_line(&mut line)?;
    ensure!(line.ends_with('\n'), "the other process ended without a word");
    Ok(line)
}

/// This program as a worker. Unless FI_PROVIDER_PATH is set, the provider is found beside this program.
fn command(work: &Work) -> Result<Command> {
    let program = std::env::current_exe().context("the program's own name")?;
    let mut command = Command::new(&program);
    if let Some(folder) = program.parent()
        && std::env::var_os("FI_PROVIDER_PATH").is_none()
        && folder.join(LIBRARY).exists()
    {
        command.env("FI_PROVIDER_PATH", folder);
    }
    command.envs(work.job.candidate.environment());
    command.arg(WORKER).arg(work.address.to_string()).arg(serde_json::to_string(&work.job)?);
    if let Role::Active(target) = &work.role {
        command.arg(target);
    }
    Ok(command)
}

/// Where the passive workers of a run are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Partner {
    /// On this host, listening there.
    Here(IpAddr),
    /// On another, where a server starts them.
    There(SocketAddr),
}

impl Partner {
    /// Does one measurement with a fresh pair of workers.
    pub(crate) fn measure(&self, job: &Job) -> Result<crate::job::Outcome> {
        let (address, mut passive) = match *self {
            Self::Here(address) => {
                (address, Worker::start(&Work { address, job: job.clone(), role: Role::Passive })?)
            }
            Self::There(server) => (server.ip(), Worker::ask(server, job)?),
        };
        let Word::Target(target) = passive.hear().context("passive side")? else {
            bail!("no target was said")
        };
        let mut active = Worker::start(&Work { address, job: job.clone(), role: Role::Active(target) })?;
        let Word::Done(done) = active.hear().context("active side")? else { bail!("no result was said") };
        let Word::Done(other) = passive.hear().context("passive side")? else { bail!("no result was said") };
        ensure!(
            done.sent == other.received && done.received == other.sent,
            "what arrived is not what was sent: {:?} and {:?} there, {:?} and {:?} back",
            done.sent,
            other.received,
            other.sent,
            done.received
        );
        Ok(done)
    }
}
