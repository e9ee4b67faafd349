use std::{collections::BTreeSet, fmt, str::FromStr};

/// A set of CPUs, written as the kernel does: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

/// More CPUs than these has no machine.
const MOST: u32 = 8192;

/// What is no set of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no list of CPUs, such as 0-3,8")]
pub struct SetError(String);

impl CpuSet {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a CPU is in the set.
    pub fn has(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// What is in either.
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    /// What is in this one alone.
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// Whether nothing is in both.
    pub fn is_apart(&self, other: &Self) -> bool {
        self.0.is_disjoint(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = SetError;

    fn from_str(text: &str) -> Result<Self, SetError> {
        let wrong = || SetError(text.to_owned());
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| *n < MOST);
            let (first, last) = number(first).zip(number(last)).ok_or_else(wrong)?;
            if first > last {
                return Err(wrong());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for &cpu in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        let range = |(first, last): &(u32, u32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        f.write_str(&ranges.iter().map(range).collect::<Vec<_>>().join(","))
    }
}
