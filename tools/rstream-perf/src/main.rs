//! Measures byte streams: what libfabric's `FI_EP_SOCK_STREAM` endpoints carry and how fast they answer,
//! beside TCP, Unix sockets and bare shared memory, in turns in one run. And messages with remote memory
//! access (`FI_EP_MSG`), beside libfabric's own provider for TCP.
//!
//! One process drives a run: for each measurement it starts two workers, which are this program again,
//! gathers what they say, and reports. Of two hosts the other runs `rstream-perf server`, which starts a
//! worker for each job that a client asks for.

#![deny(unsafe_code)]

mod candidate;
mod driver;
mod job;
mod machine;
mod measure;
mod options;
mod partner;
mod placement;
mod report;
mod size;
mod statistics;
mod transport;
mod worker;

use std::process::ExitCode;

use options::Command;

fn main() -> ExitCode {
    let done = Command::from_arguments().and_then(|command| match command {
        Command::Say(text) => {
            print!("{text}");
            Ok(())
        }
        Command::Measure(options) => driver::measure(&options),
        Command::Serve(addresses) => partner::serve(&addresses),
        Command::Work(work) => worker::work(&work),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rstream-perf: {error:#}");
            ExitCode::FAILURE
        }
    }
}
