//! A result file of a test, with the outcome of each claim: passed, failed or not run.

use std::{fs, path::Path, process::Command, time::Instant};

use serde_json::{Value, json};

/// The outcomes of a test's claims, written to `target/interop-TEST.json` after each one.
pub(super) struct Results {
    test: &'static str,
    /// The SHA-256 hash of each binary of the test.
    binaries: Value,
    claims: Vec<(&'static str, Value)>,
    current: Option<(usize, Instant)>,
}

impl Results {
    /// Writes the result file with all claims of the test, in order, as not run.
    pub(super) fn new(test: &'static str, peer: &Path, claims: &[&'static str]) -> Self {
        let claims = claims.iter().map(|claim| (*claim, json!({"state": "not run"}))).collect();
        let mut binaries = json!({"windlass": hash(&e2e::binary())});
        for entry in fs::read_dir(peer).into_iter().flatten().flatten() {
            binaries[entry.file_name().to_string_lossy().as_ref()] = json!(hash(&entry.path()));
        }
        let results = Self { test, binaries, claims, current: None };
        results.write();
        results
    }

    /// Begins a claim and marks the current one as passed.
    #[track_caller]
    pub(super) fn begin(&mut self, claim: &'static str) {
        self.end("passed");
        println!("{}: {claim}", self.test);
        let found = self.claims.iter().position(|(listed, _)| *listed == claim);
        let index = found.unwrap_or_else(|| panic!("{claim} is not in the list"));
        self.current = Some((index, Instant::now()));
    }

    fn end(&mut self, state: &str) {
        if let Some((index, started)) = self.current.take() {
            let seconds = (started.elapsed().as_secs_f64() * 10.0).round() / 10.0;
            self.claims[index].1 = json!({"state": state, "seconds": seconds});
        }
        self.write();
    }

    fn write(&self) {
        let claims: Vec<Value> = self
            .claims
            .iter()
            .map(|(claim, outcome)| {
                let mut row = outcome.clone();
                row["claim"] = json!(claim);
                row
            })
            .collect();
        let value = json!({"test": self.test, "claims": claims, "binaries": self.binaries});
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target");
        let file = target.join(format!("interop-{}.json", self.test));
        fs::write(&file, format!("{value:#}\n"))
            .unwrap_or_else(|e| panic!("writing {}: {e}", file.display()));
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        self.end(if std::thread::panicking() { "failed" } else { "passed" });
    }
}

fn hash(file: &Path) -> String {
    let output = Command::new("sha256sum")
        .arg(file)
        .output()
        .expect("sha256sum, of coreutils, is installed");
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().unwrap_or("absent").to_owned()
}
