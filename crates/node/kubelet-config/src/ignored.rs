//! Fields of the configuration file that are accepted without effect.

use api_config::known::Field;

/// Upstream's fields without effect, each with the reason why ignoring it is harmless.
pub(crate) const WITHOUT_EFFECT: &[Field] = &[
    (
        "configMapAndSecretChangeDetectionStrategy",
        "the kubelet watches what its Pods refer to, which is the default",
    ),
    ("contentType", "the encoding of requests changes no result"),
    ("enableContentionProfiling", "it is for the profiler of Go"),
    (
        "enableControllerAttachDetach",
        "the attach/detach controller attaches all volumes, which is the default",
    ),
    ("enableDebugFlagsHandler", "the endpoint changes the verbosity of Go programs"),
    ("enableProfilingHandler", "it is for the profiler of Go"),
    ("fileCheckFrequency", "the files of static Pods are read every second, which is sooner"),
    ("hairpinMode", "the network plugin decides, as upstream with any CNI plugin"),
    ("iptablesDropBit", "the kubelet makes no iptables rules"),
    ("iptablesMasqueradeBit", "the kubelet makes no iptables rules"),
    ("kernelMemcgNotification", "memory is measured every ten seconds, as upstream by default"),
    (
        "kubeAPIBurst",
        "requests are few, because they are watches, and the API server protects itself",
    ),
    (
        "kubeAPIQPS",
        "requests are few, because they are watches, and the API server protects itself",
    ),
    (
        "kubeletCgroups",
        "the kubelet stays in the control group in which it was started; only accounting differs",
    ),
    ("logging", "the format of logs changes no behaviour; set WINDLASS_LOG for levels"),
    ("makeIPTablesUtilChains", "the kubelet makes no iptables rules; the proxy makes its own"),
    ("nodeLeaseRenewIntervalFraction", "leases are renewed every quarter of their duration"),
    ("runOnce", "removed upstream"),
    ("showHiddenMetricsForVersion", "no metric is hidden"),
    (
        "systemCgroups",
        "processes stay in the control groups in which they were started; only accounting differs",
    ),
    (
        "volumePluginDir",
        "FlexVolume, which is deprecated upstream, is not supported; its volumes fail to mount",
    ),
    (
        "volumeStatsAggPeriod",
        "volumes are measured when a client asks for it, so values are never older",
    ),
];
