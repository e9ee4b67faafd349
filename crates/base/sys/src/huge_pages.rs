//! The huge pages that a machine reserves.

use std::{collections::BTreeMap, fs, io, path::Path};

use crate::error::Error;

/// The kernel's directory with the huge pages of the machine. Each NUMA node has its own.
pub const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

/// Returns the numbers of huge pages by page size in bytes. Without the directory there are none.
pub fn huge_pages(directory: &Path) -> Result<BTreeMap<u64, u64>, Error> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        other => other.map_err(Error::at("read", directory))?,
    };
    let mut pages = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(Error::at("read", directory))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let size = name.strip_prefix("hugepages-").and_then(|name| name.strip_suffix("kB"));
        let Some(size) = size.and_then(|size| size.parse::<u64>().ok()?.checked_mul(1024)) else {
            continue;
        };
        let file = entry.path().join("nr_hugepages");
        let text = fs::read_to_string(&file).map_err(Error::at("read", &file))?;
        let count = text.trim().parse().map_err(|_| {
            let wrong = format!("{text:?} is not a number of pages");
            Error::at("read", &file)(io::Error::new(io::ErrorKind::InvalidData, wrong))
        })?;
        pages.insert(size, count);
    }
    Ok(pages)
}

/// Formats a page size as in the file names of cgroups and for container runtimes: `2MB`, `1GB`.
pub fn huge_page_unit(size: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KB", "MB", "GB", "TB", "PB", "EB"];
    let (mut left, mut unit) = (size, 0);
    while left >= 1024 && unit + 1 < UNITS.len() {
        left /= 1024;
        unit += 1;
    }
    format!("{left}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_page_counts_and_formats_sizes_like_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let pages = |name: &str, text: &str| {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("nr_hugepages"), text).unwrap();
        };
        pages("hugepages-2048kB", "8\n");
        pages("hugepages-1048576kB", "0\n");
        for other in ["hugepages-kB", "hugepages-99999999999999999999kB", "other"] {
            pages(other, "1");
        }
        let read = huge_pages(dir.path()).unwrap();
        assert_eq!(read, BTreeMap::from([(2 << 20, 8), (1 << 30, 0)]));
        pages("hugepages-64kB", "many");
        let error = huge_pages(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("nr_hugepages: \"many\" is not a number of pages"), "{error}");
        assert_eq!(huge_pages(&dir.path().join("none")).unwrap(), BTreeMap::new());
        let named = [64 << 10, 2 << 20, 32 << 20, 1 << 30, 16 << 30].map(huge_page_unit);
        assert_eq!(named, ["64KB", "2MB", "32MB", "1GB", "16GB"]);
    }
}
