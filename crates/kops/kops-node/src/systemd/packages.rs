//! Packages of Debian's family.

use std::collections::BTreeSet;

use sys::Programs;

use crate::error::Error;

/// The flags that keep changed configuration files, about which dpkg would ask.
const KEEP_FILES: [&str; 2] = ["--force-confdef", "--force-confold"];

/// Installs the missing packages. Returns what was changed.
pub(super) fn install(names: &[&str], programs: &dyn Programs) -> Result<Vec<String>, Error> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    // dpkg-query fails if one is unknown, and prints the others.
    let query = [
        &["dpkg-query", "--show", "--showformat=${binary:Package} ${db:Status-Abbrev}\\n"][..],
        names,
    ]
    .concat();
    let output = programs.run(&query, &[])?.stdout;
    let installed: BTreeSet<&str> = output.lines().filter_map(installed).collect();
    let missing: Vec<&str> =
        names.iter().copied().filter(|name| !installed.contains(name)).collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    // No program may ask questions, and another user of the package manager is waited for.
    let environment = ["env", "DEBIAN_FRONTEND=noninteractive"];
    let apt = ["apt-get", "--option=DPkg::Lock::Timeout=300"];
    // A run that was killed while it installed packages leaves some that apt-get rejects to touch.
    programs.must(
        &[&environment[..], &["dpkg"], &KEEP_FILES, &["--configure", "--pending"]].concat(),
    )?;
    programs.must(&[&environment[..], &apt, &["update"]].concat())?;
    let keep = KEEP_FILES.map(|flag| format!("--option=DPkg::Options::={flag}"));
    let keep: Vec<&str> = keep.iter().map(String::as_str).collect();
    let flags = ["install", "--yes", "--no-install-recommends", "--"];
    programs.must(&[&environment[..], &apt, &keep, &flags, &missing].concat())?;
    Ok(vec![format!("installed {}", missing.join(", "))])
}

/// Returns the name of a package that is installed and configured.
fn installed(line: &str) -> Option<&str> {
    let (name, state) = line.split_once(' ')?;
    // Names of packages for several architectures end in the architecture.
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    (state.trim() == "ii").then_some(name)
}

#[cfg(test)]
mod tests {
    use sys::{ProgramOutput, RecordedPrograms};

    use super::*;

    #[test]
    fn installs_only_missing_packages() {
        let programs = RecordedPrograms::new(|command| {
            let is_query = command.starts_with("dpkg-query");
            let stdout = "iptables ii \nlibseccomp2:amd64 ii \nhalf iU \ngone rc \n";
            let stdout = if is_query { stdout.to_owned() } else { String::new() };
            ProgramOutput { code: Some(i32::from(is_query)), stdout, ..ProgramOutput::default() }
        });
        let done = install(&["iptables", "libseccomp2"], &programs).unwrap();
        assert_eq!((done.len(), programs.calls().len()), (0, 1));
        let done = install(&["iptables", "half", "gone", "new"], &programs).unwrap();
        assert_eq!(done, ["installed half, gone, new"]);
        let calls = programs.calls();
        assert!(calls[2].ends_with("--configure --pending"), "{calls:?}");
        assert!(calls[3].ends_with(" update"), "{calls:?}");
        assert!(
            calls[4].ends_with("install --yes --no-install-recommends -- half gone new"),
            "{calls:?}"
        );
        assert!(install(&[], &programs).unwrap().is_empty());
    }
}
