//! Phases: named steps that run in order, can be skipped, and can be run alone. Read [`Phase`] and [`run`] first.

use futures_util::future::BoxFuture;
use telemetry::Progress;

use crate::{Error, FileChange};

/// The outcome of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done(Vec<FileChange>),
    /// The phase waited for these components, which are up now.
    Waited(Vec<String>),
    /// The phase had nothing to do, for this reason.
    Skipped(String),
}

impl Outcome {
    /// Returns an outcome without files.
    pub fn done() -> Self {
        Self::Done(Vec::new())
    }

    /// Returns an outcome for a skipped phase.
    pub fn skipped(why: impl Into<String>) -> Self {
        Self::Skipped(why.into())
    }
}

/// The phase of every command that only checks the machine.
pub(crate) const PREFLIGHT: &str = "preflight";

/// The function of a phase, on its command's context such as [`crate::init::Ctx`].
pub type Run<C> = for<'a> fn(&'a mut C) -> BoxFuture<'a, Result<Outcome, Error>>;

/// A step of a command.
pub struct Phase<C> {
    /// The path of the phase, such as `certs/etcd-server`.
    pub name: &'static str,
    /// The description for help texts.
    pub about: &'static str,
    /// The work of the phase.
    pub run: Run<C>,
}

impl<C> Phase<C> {
    /// Returns `true` if `selector` names this phase or a group that contains it (`certs`, `certs/all`, `all`).
    fn is_in(&self, selector: &str) -> bool {
        let group = selector.strip_suffix("/all").unwrap_or(selector);
        self.name.eq_ignore_ascii_case(group)
            || (self.name.len() > group.len()
                && self.name.as_bytes()[group.len()] == b'/'
                && self.name[..group.len()].eq_ignore_ascii_case(group))
    }
}

/// Reports whether one of `selectors` names the phase `name`, by itself or by its group.
pub(crate) fn is_named<C>(phases: &[Phase<C>], selectors: &[String], name: &str) -> bool {
    let named = |phase: &Phase<C>| selectors.iter().any(|selector| phase.is_in(selector));
    phases.iter().any(|phase| phase.name == name && named(phase))
}

/// Returns which phases `selectors` name. A selector without a phase is an error.
fn select<C>(phases: &[Phase<C>], selectors: &[String]) -> Result<Vec<bool>, Error> {
    let mut chosen = vec![false; phases.len()];
    for selector in selectors {
        let mut exists = false;
        for (phase, chosen) in phases.iter().zip(&mut chosen) {
            if phase.is_in(selector) {
                (exists, *chosen) = (true, true);
            }
        }
        if !exists {
            let names = phases.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
            return Err(Error::NoSuchPhase { name: selector.clone(), names });
        }
    }
    Ok(chosen)
}

/// Runs every phase except those in `skip`, or only those in `only` if it is not empty.
pub async fn run<C>(
    phases: &[Phase<C>],
    only: &[String],
    skip: &[String],
    progress: &Progress,
    context: &mut C,
) -> Result<(), Error> {
    let only = if only.is_empty() { vec![true; phases.len()] } else { select(phases, only)? };
    let skip = select(phases, skip)?;
    for ((phase, selected), skipped) in phases.iter().zip(only).zip(skip) {
        if selected && !skipped {
            run_one(phase, progress, context).await?;
        }
    }
    Ok(())
}

async fn run_one<C>(phase: &Phase<C>, progress: &Progress, context: &mut C) -> Result<(), Error> {
    let mut step = progress.begin(phase.name);
    match (phase.run)(context).await {
        Ok(Outcome::Done(touched)) => {
            for file in touched {
                if file.written {
                    step.record().written(file.path);
                } else {
                    step.record().read(file.path);
                }
            }
            step.end(Ok::<_, Error>(()))
        }
        Ok(Outcome::Waited(names)) => {
            for name in names {
                step.record().waited_for(name);
            }
            step.end(Ok::<_, Error>(()))
        }
        Ok(Outcome::Skipped(why)) => {
            step.skipped(&why);
            Ok(())
        }
        Err(source) => {
            let error = Error::Phase { name: phase.name, source: Box::new(source) };
            if phase.name == PREFLIGHT { step.checked(Err(error)) } else { step.end(Err(error)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use telemetry::Recorder;

    use super::*;

    type Log = Vec<&'static str>;

    const PHASES: &[Phase<Log>] = &[
        Phase {
            name: "certs/ca",
            about: "",
            run: |log| {
                Box::pin(async {
                    log.push("ca");
                    Ok(Outcome::done())
                })
            },
        },
        Phase {
            name: "certs/sa",
            about: "",
            run: |log| {
                Box::pin(async {
                    log.push("sa");
                    Ok(Outcome::skipped("given"))
                })
            },
        },
        Phase {
            name: "certsx",
            about: "",
            run: |log| {
                Box::pin(async {
                    log.push("x");
                    Ok(Outcome::done())
                })
            },
        },
    ];

    async fn ran(only: &[&str], skip: &[&str]) -> Result<Log, Error> {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let mut log = Log::new();
        run(PHASES, &owned(only), &owned(skip), &Progress::silent(Recorder::none()), &mut log)
            .await?;
        Ok(log)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn selects_and_skips_phases_and_groups() {
        assert_eq!(ran(&[], &[]).await.unwrap(), ["ca", "sa", "x"]);
        assert_eq!(ran(&["certs"], &[]).await.unwrap(), ["ca", "sa"]);
        assert_eq!(ran(&["certs/all"], &["CERTS/SA"]).await.unwrap(), ["ca"]);
        assert_eq!(ran(&[], &["certs"]).await.unwrap(), ["x"]);
        let error = ran(&[], &["nonsense"]).await.unwrap_err().to_string();
        assert!(error.contains("nonsense") && error.contains("certs/ca"), "{error}");
    }
}
