//! The ranges of user and group IDs of Pods with a user namespace of their own (KEP-127).
//!
//! The record of a Pod's range is in upstream's format, so that each kubelet can take over the other's Pods.

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

/// The smallest number of IDs of a Pod. All numbers of IDs are multiples of it. The IDs below it belong to the host.
pub const UNIT: u32 = 1 << 16;

/// Reports whether the Pod requests a user namespace of its own.
pub fn has_user_namespace(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_users) == Some(false)
}

/// A range of user IDs of the host, and of group IDs with the same numbers. The first of them is root in the Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first ID on the host.
    pub first: u32,
    /// The number of IDs.
    pub length: u32,
}

impl IdRange {
    fn end(self) -> u64 {
        u64::from(self.first) + u64::from(self.length)
    }
}

/// The error of IDs that Pods cannot use. The messages are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdRangeError {
    #[error("error parsing line {0:?}: it must contain only one line")]
    Lines(String),
    #[error("invalid line {0:?}")]
    Line(String),
    #[error("mismatched subuids and subgids for user \"kubelet\"")]
    Mismatch,
    #[error("kubelet user assigned ID {first} must be greater or equal to {UNIT}")]
    OfHost { first: u32 },
    #[error("kubelet user assigned ID {first} is not a multiple of {unit}")]
    First { first: u32, unit: u32 },
    #[error("kubelet user assigned IDs length {length} is not a multiple of {unit}")]
    Length { length: u64, unit: u32 },
    #[error("kubelet user assigned IDs are not enough to support {pods} pods")]
    TooFew { pods: u32 },
    #[error("kubelet user assigned IDs end after the largest ID")]
    TooLarge,
}

/// The error of a record of a Pod's range.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("it is malformed: {0}")]
    Json(#[from] serde_json::Error),
    #[error("it has no range of users and groups that starts with the container's root")]
    Mapping,
}

/// The IDs of the node that Pods may use, cut into one range for each Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdRanges {
    first: u32,
    per_pod: u32,
    count: u32,
}

impl IdRanges {
    /// Returns the ranges after those of the host, for a node on which no IDs are assigned to the user `kubelet`.
    ///
    /// # Errors
    ///
    /// Returns an error if there are not as many IDs.
    pub fn unassigned(per_pod: u32, pods: u32) -> Result<Self, IdRangeError> {
        Self::new(per_pod, u64::from(per_pod) * u64::from(pods), per_pod, pods)
    }

    /// Parses the output of `getsubids kubelet` and `getsubids -g kubelet`.
    ///
    /// # Errors
    ///
    /// Returns an error unless both are one same range that suffices for this number of Pods.
    pub fn assigned(
        users: &str,
        groups: &str,
        per_pod: u32,
        pods: u32,
    ) -> Result<Self, IdRangeError> {
        if users != groups {
            return Err(IdRangeError::Mismatch);
        }
        let line = users.trim_matches('\n');
        if line.contains('\n') {
            return Err(IdRangeError::Lines(line.to_owned()));
        }
        let parts: Vec<&str> = line.split_whitespace().collect();
        let invalid = || IdRangeError::Line(line.to_owned());
        let [_, _, first, length] = parts[..] else { return Err(invalid()) };
        let first = first.parse().map_err(|_| invalid())?;
        let length = length.parse().map_err(|_| invalid())?;
        Self::new(first, length, per_pod, pods)
    }

    fn new(first: u32, length: u64, per_pod: u32, pods: u32) -> Result<Self, IdRangeError> {
        if first < UNIT {
            return Err(IdRangeError::OfHost { first });
        }
        if !first.is_multiple_of(UNIT) {
            return Err(IdRangeError::First { first, unit: UNIT });
        }
        if !length.is_multiple_of(per_pod.into()) {
            return Err(IdRangeError::Length { length, unit: per_pod });
        }
        let count = u32::try_from(length / u64::from(per_pod)).unwrap_or(u32::MAX);
        if count < pods {
            return Err(IdRangeError::TooFew { pods });
        }
        if u64::from(first) + length > 1 << 32 {
            return Err(IdRangeError::TooLarge);
        }
        Ok(Self { first, per_pod, count })
    }

    /// Returns the first range that overlaps none of those in use.
    pub fn free(&self, used: impl IntoIterator<Item = IdRange>) -> Option<IdRange> {
        let count = usize::try_from(self.count).unwrap_or(0);
        let mut is_used = vec![false; count];
        let position = |id: u64| {
            let beyond = id.saturating_sub(u64::from(self.first));
            usize::try_from(beyond / u64::from(self.per_pod)).unwrap_or(count).min(count)
        };
        for range in used.into_iter().filter(|range| range.end() > u64::from(self.first)) {
            let last = position(range.end() - 1).saturating_add(1).min(count);
            let first = position(range.first.into()).min(last);
            is_used[first..last].fill(true);
        }
        let free = is_used.iter().position(|used| !used)?;
        let offset = u32::try_from(free).ok()? * self.per_pod;
        Some(IdRange { first: self.first + offset, length: self.per_pod })
    }
}

/// The record of a Pod's range.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Record {
    #[serde(rename = "uidMappings")]
    users: Vec<Mapping>,
    #[serde(rename = "gidMappings")]
    groups: Vec<Mapping>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// Formats the record of a Pod's range.
pub fn format_record(range: IdRange) -> String {
    let mapping = Mapping { host_id: range.first, container_id: 0, length: range.length };
    let record = Record { users: vec![mapping], groups: vec![mapping] };
    serde_json::to_string(&record).unwrap_or_default()
}

/// Parses the record of a Pod's range.
///
/// # Errors
///
/// Returns an error if a Pod with such a record would have IDs of the host.
pub fn parse_record(text: &[u8]) -> Result<IdRange, RecordError> {
    let record: Record = serde_json::from_slice(text)?;
    let ([users], [groups]) = (&record.users[..], &record.groups[..]) else {
        return Err(RecordError::Mapping);
    };
    let range = IdRange { first: users.host_id, length: users.length };
    let is_possible = users.container_id == 0
        && range.first >= UNIT
        && range.length > 0
        && range.end() <= 1 << 32;
    if users == groups && is_possible { Ok(range) } else { Err(RecordError::Mapping) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigned(users: &str) -> Result<IdRanges, String> {
        IdRanges::assigned(users, users, UNIT, 110).map_err(|error| error.to_string())
    }

    #[test]
    fn parses_assigned_ids_or_reports_why_they_do_not_suffice() {
        let ranges = assigned("0: kubelet 65536 7208960\n").unwrap();
        assert_eq!(ranges, IdRanges::unassigned(UNIT, 110).unwrap());
        assert!(assigned("0: kubelet 131072 4294836224").is_ok(), "up to the largest ID");
        for (users, message) in [
            ("", "invalid line \"\""),
            ("0: kubelet 65536", "invalid line \"0: kubelet 65536\""),
            ("0: kubelet -1 7208960", "invalid line \"0: kubelet -1 7208960\""),
            ("0: kubelet 65536 1\n1: kubelet 99 1", "must contain only one line"),
            ("0: kubelet 0 7208960", "assigned ID 0 must be greater or equal to 65536"),
            ("0: kubelet 65537 7208960", "assigned ID 65537 is not a multiple of 65536"),
            ("0: kubelet 65536 7208961", "length 7208961 is not a multiple of 65536"),
            ("0: kubelet 65536 65536", "not enough to support 110 pods"),
            ("0: kubelet 4294901760 7208960", "after the largest ID"),
            ("0: kubelet 65536 18446744073709551616", "invalid line"),
        ] {
            let error = assigned(users).unwrap_err();
            assert!(error.contains(message), "{users:?}: {error}");
        }
        let other = IdRanges::assigned("0: kubelet 65536 65536", "0: kubelet 1 1", UNIT, 1);
        assert_eq!(other, Err(IdRangeError::Mismatch));
        assert_eq!(IdRanges::unassigned(1 << 31, 110), Err(IdRangeError::TooLarge));
    }

    #[test]
    fn allocates_ranges_without_overlap() {
        let ranges = IdRanges::unassigned(UNIT, 3).unwrap();
        let mut used = Vec::new();
        while let Some(range) = ranges.free(used.iter().copied()) {
            used.push(range);
        }
        let first: Vec<u32> = used.iter().map(|range| range.first / UNIT).collect();
        assert_eq!(first, [1, 2, 3]);
        used.remove(1);
        assert_eq!(ranges.free(used.clone()), Some(IdRange { first: 2 * UNIT, length: UNIT }));
        // Records of an earlier configuration and hostile ones may begin and end anywhere.
        for (first, length, free) in [
            (0, UNIT, Some(1)),
            (2 * UNIT - 1, 2, Some(3)),
            (UNIT, u32::MAX, None),
            (4 * UNIT, UNIT, Some(1)),
            (u32::MAX, u32::MAX, Some(1)),
            (1, 1, Some(1)),
        ] {
            let found = ranges.free([IdRange { first, length }]).map(|range| range.first / UNIT);
            assert_eq!(found, free, "{first} {length}");
        }
    }

    #[test]
    fn reads_only_records_that_map_root_outside_of_the_host() {
        let range = IdRange { first: 131_072, length: UNIT };
        let text = format_record(range);
        assert_eq!(
            text,
            "{\"uidMappings\":[{\"hostId\":131072,\"containerId\":0,\"length\":65536}],\
             \"gidMappings\":[{\"hostId\":131072,\"containerId\":0,\"length\":65536}]}"
        );
        assert_eq!(parse_record(text.as_bytes()).unwrap(), range);
        for wrong in [
            text.replace("\"containerId\":0", "\"containerId\":1"),
            text.replace("131072", "0"),
            text.replacen("131072", "196608", 1),
            text.replace("131072", "4294967295"),
            text.replace("131072", "-1"),
            text.replace("65536", "0"),
            "{}".to_owned(),
            "{\"uidMappings\":[],\"gidMappings\":[]}".to_owned(),
            text[..20].to_owned(),
        ] {
            assert!(parse_record(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
