//! Checks kernel settings (`protectKernelDefaults`).

use std::{fs, path::Path};

/// The expected values by path below `/proc/sys`, as upstream.
const EXPECTED: [(&str, i64); 6] = [
    ("kernel/keys/root_maxbytes", 25_000_000),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
];

/// The settings that differ, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct KernelError(Vec<String>);

impl KernelError {
    fn text(&self) -> String {
        match self.0.as_slice() {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        }
    }
}

/// Checks the settings. The error lists every difference.
pub(crate) fn check(root: &Path) -> Result<(), KernelError> {
    let difference = |(flag, expected): &(&str, i64)| match fs::read_to_string(root.join(flag)) {
        Err(error) => Some(format!("open {}: {error}", root.join(flag).display())),
        Ok(text) if text.trim().parse() == Ok(*expected) => None,
        Ok(text) => Some(format!(
            "invalid kernel flag: {flag}, expected value: {expected}, actual value: {}",
            text.trim()
        )),
    };
    let differences: Vec<String> = EXPECTED.iter().filter_map(difference).collect();
    if differences.is_empty() { Ok(()) } else { Err(KernelError(differences)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_every_setting_that_differs() {
        let dir = tempfile::tempdir().unwrap();
        for (flag, value) in EXPECTED {
            let path = dir.path().join(flag);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        check(dir.path()).unwrap();
        fs::write(dir.path().join("vm/overcommit_memory"), "0\n").unwrap();
        assert_eq!(
            check(dir.path()).unwrap_err().to_string(),
            "invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 0"
        );
        fs::remove_file(dir.path().join("kernel/panic")).unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().starts_with("[open "));
    }
}
