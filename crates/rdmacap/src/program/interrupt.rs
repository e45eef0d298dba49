//! Standard input that ends when somebody has seen enough: an interrupt ends the reading, not the program, which
//! then shows what it knows.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What whoever captures still has to say when an interrupt ends it as well comes within this time.
const GRACE: Duration = Duration::from_secs(1);
/// How long a signal may go unseen that comes right before the program waits.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Standard input, up to a signal.
pub(crate) struct Interruptible {
    input: File,
    stop: Arc<AtomicBool>,
    until: Option<Instant>,
}

impl Interruptible {
    /// From now on the first signal ends the input, and the second one the program.
    pub(crate) fn new() -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag unset.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))?;
            flag::register(signal, Arc::clone(&stop))?;
        }
        // Without the standard library's buffer, in which bytes would be that nobody waits for.
        let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Self { input, stop, until: None })
    }
}

impl Read for Interruptible {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                let until = *self.until.get_or_insert_with(|| Instant::now() + GRACE);
                if Instant::now() >= until {
                    return Ok(0);
                }
            }
            match poll(&mut [PollFd::new(&self.input, PollFlags::IN)], Some(&TICK)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return self.input.read(bytes),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
