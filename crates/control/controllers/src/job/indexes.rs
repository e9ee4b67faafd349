//! Sets of completion indexes, formatted as `1,3-5`.

use std::{collections::BTreeSet, ops::RangeInclusive};

/// Parses the ranges of a set of indexes below `limit`. None of them is empty.
pub(super) fn ranges(text: &str, limit: i64) -> impl Iterator<Item = RangeInclusive<i64>> {
    let ranges = text.split(',').filter_map(move |part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<i64>().ok()?, last.parse::<i64>().ok()?);
        Some(first.max(0)..=last.min(limit - 1))
    });
    ranges.filter(|range| !range.is_empty())
}

/// Parses a set whose indexes have had Pods, so that its size is limited.
pub(super) fn parse(text: &str, limit: i64) -> BTreeSet<i64> {
    ranges(text, limit).flatten().collect()
}

pub(super) fn format(indexes: &BTreeSet<i64>) -> String {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for &index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => ranges.push((index, index)),
        }
    }
    let written = ranges.iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    written.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_indexes_as_ranges() {
        for text in ["", "0", "0,1", "1,3-5,7", "0-99"] {
            assert_eq!(format(&parse(text, 100)), text);
        }
        assert_eq!(format(&parse("0-1000000000", 3)), "0-2");
    }
}
