use std::{io, process::Child};

use nix::{
    sys::{
        signal::{SigSet, Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// Does what a sandbox's first process has to: keeps the namespaces alive, buries orphans, and ends when told to.
pub fn pause() -> io::Result<()> {
    let wanted = signals()?;
    loop {
        match wanted.wait()? {
            Signal::SIGCHLD => while next_ended().is_some() {},
            _ => return Ok(()),
        }
    }
}

/// Waits for a child as the first process of a namespace: buries orphans, and passes on the request to end. Returns the
/// child's exit code, or 128 and the number of the signal that ended it.
pub fn attend(child: &Child) -> io::Result<i32> {
    let own = Pid::from_raw(child.id().cast_signed());
    let wanted = signals()?;
    loop {
        // Before the first wait: the child may have ended while its signal was not blocked.
        while let Some(status) = next_ended() {
            match status {
                WaitStatus::Exited(pid, code) if pid == own => return Ok(code),
                WaitStatus::Signaled(pid, signal, _) if pid == own => {
                    return Ok(128 + signal as i32);
                }
                _ => {}
            }
        }
        match wanted.wait()? {
            Signal::SIGCHLD => {}
            // A child that has just ended needs no signal.
            signal => {
                let _ = kill(own, signal);
            }
        }
    }
}

fn signals() -> io::Result<SigSet> {
    let mut wanted = SigSet::empty();
    wanted.add(Signal::SIGINT);
    wanted.add(Signal::SIGTERM);
    wanted.add(Signal::SIGCHLD);
    wanted.thread_block()?;
    Ok(wanted)
}

/// Collects a child that has ended, if there is one.
fn next_ended() -> Option<WaitStatus> {
    let status = waitpid(None, Some(WaitPidFlag::WNOHANG)).ok()?;
    (status != WaitStatus::StillAlive).then_some(status)
}
