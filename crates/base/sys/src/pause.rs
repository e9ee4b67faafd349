use std::{io, process::Child};

use nix::{
    sys::{
        signal::{SigSet, Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// Runs a sandbox's first process: it keeps the namespaces alive, reaps orphans, and ends on SIGTERM or SIGINT.
pub fn pause() -> io::Result<()> {
    let wanted = signals()?;
    loop {
        match wanted.wait()? {
            Signal::SIGCHLD => while next_ended().is_some() {},
            _ => return Ok(()),
        }
    }
}

/// Waits for a child as the first process of a namespace: reaps orphans and forwards SIGTERM and SIGINT. Returns the
/// child's exit code, or 128 plus the number of the signal that killed it.
pub fn attend(child: &Child) -> io::Result<i32> {
    let main = Pid::from_raw(child.id().cast_signed());
    let wanted = signals()?;
    loop {
        // Reap before the first wait: the child may have ended before its signal was blocked.
        while let Some(status) = next_ended() {
            match status {
                WaitStatus::Exited(pid, code) if pid == main => return Ok(code),
                WaitStatus::Signaled(pid, signal, _) if pid == main => {
                    return Ok(128 + signal as i32);
                }
                _ => {}
            }
        }
        match wanted.wait()? {
            Signal::SIGCHLD => {}
            // The child may have just ended.
            signal => {
                let _ = kill(main, signal);
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

/// Reaps a child that has ended, if there is one.
fn next_ended() -> Option<WaitStatus> {
    let status = waitpid(None, Some(WaitPidFlag::WNOHANG)).ok()?;
    (status != WaitStatus::StillAlive).then_some(status)
}
