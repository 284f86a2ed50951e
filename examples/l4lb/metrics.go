package main

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/lbprim/lbprim/steering"
)

// metrics turns a status into Prometheus metrics when they are asked for, so that nothing is counted twice.
type metrics struct {
	status func() *statusReply
	all    map[string]*prometheus.Desc
}

// Names and help of the metrics, with their labels.
var metricTable = [...]struct {
	name, help string
	labels     []string
}{
	{"build_info", "Version of the program; always 1.", []string{"version"}},
	{"ready", "Whether the balancer takes new sessions and some service has as many usable nodes as it wants.", nil},
	{"draining", "Whether the whole balancer takes no new sessions.", nil},
	{"config_reloads_total", "Reloads of the configuration, by result.", []string{"result"}},
	{"config_last_reload_successful", "Whether the last reload was put in force.", nil},
	{"config_loaded_timestamp_seconds", "When the configuration in force was loaded.", nil},
	{"sessions", "Open sessions.", nil},
	{"sessions_limit", "Most sessions there may be.", nil},
	{"associations", "Clients remembered beyond their sessions.", nil},
	{"associations_limit", "Most clients that may be remembered.", nil},
	{"device_packets_total", "Packets read from and written to the device.", []string{"direction"}},
	{"device_bytes_total", "Octets read from and written to the device.", []string{"direction"}},
	{"packets_passed_total", "Packets that were no business of the balancer's.", nil},
	{"packets_dropped_total", "Packets dropped, by reason.", []string{"reason"}},
	{"resets_total", "TCP resets sent for lost sessions.", nil},
	{"pings_answered_total", "Echo requests answered.", nil},
	{"icmp_errors_translated_total", "ICMP errors translated.", nil},
	{"flow_records_total", "Flow records by result: reported to the collector, lost, or failed.", []string{"result"}},
	{"service_usable_nodes", "Nodes that may take a new session of the service.", []string{"service"}},
	{"service_packets_total", "Packets from (in) and to (out) clients.", []string{"service", "direction"}},
	{"service_bytes_total", "Octets from (in) and to (out) clients.", []string{"service", "direction"}},
	{"service_sessions_total", "Sessions begun.", []string{"service"}},
	{"service_sessions_refused_total", "Sessions that found no node, or no room.", []string{"service"}},
	{"node_up", "Whether the node is healthy.", []string{"farm", "node"}},
	{"node_state", "Whether the node is in a state; available is the one in which it may take new sessions.", []string{"farm", "node", "state"}},
	{"node_weight", "Configured weight.", []string{"farm", "node"}},
	{"node_share_ratio", "Part of new sessions that the node's weight gives it now.", []string{"farm", "node"}},
	{"node_pressure_level", "How hard the node is pressed: 0 normal, 1 high, 2 severe.", []string{"farm", "node"}},
	{"node_sessions", "Open sessions.", []string{"farm", "node"}},
	{"node_sessions_total", "Sessions begun.", []string{"farm", "node"}},
	{"node_packets_total", "Packets to (in) and from (out) the node.", []string{"farm", "node", "direction"}},
	{"node_bytes_total", "Octets to (in) and from (out) the node.", []string{"farm", "node", "direction"}},
	{"node_response_seconds", "Moving average of the node's response time.", []string{"farm", "node"}},
	{"node_checks_total", "Results of the node's own check.", []string{"farm", "node"}},
	{"node_check_failures_total", "Of these, failures.", []string{"farm", "node"}},
}

// newRegistry returns a registry of the balancer's, the process's and the runtime's metrics.
func newRegistry(status func() *statusReply) *prometheus.Registry {
	m := &metrics{status: status, all: map[string]*prometheus.Desc{}}
	for _, x := range metricTable {
		m.all[x.name] = prometheus.NewDesc("l4lb_"+x.name, x.help, x.labels, nil)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range m.all {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	put := func(kind prometheus.ValueType) func(name string, v float64, labels ...string) {
		return func(name string, v float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(m.all[name], kind, v, labels...)
		}
	}
	gauge, counter := put(prometheus.GaugeValue), put(prometheus.CounterValue)
	flow := func(prefix string, t trafficReply, labels ...string) {
		for _, d := range []struct {
			name string
			c    countReply
		}{{"in", t.In}, {"out", t.Out}} {
			with := slices.Concat(labels, []string{d.name})
			counter(prefix+"_packets_total", float64(d.c.Packets), with...)
			counter(prefix+"_bytes_total", float64(d.c.Bytes), with...)
		}
		counter(prefix+"_sessions_total", float64(t.Sessions), labels...)
	}
	s := m.status()
	gauge("build_info", 1, s.Version)
	gauge("ready", truth(s.Ready))
	gauge("draining", truth(s.Draining))
	counter("config_reloads_total", float64(s.Config.Reloads), "success")
	counter("config_reloads_total", float64(s.Config.Refused), "refused")
	gauge("config_last_reload_successful", truth(s.Config.Error == ""))
	gauge("config_loaded_timestamp_seconds", float64(s.Config.Loaded.UnixMilli())/1000)
	gauge("sessions", float64(s.Totals.Sessions))
	gauge("sessions_limit", float64(s.Totals.MaxSessions))
	gauge("associations", float64(s.Totals.Associations))
	gauge("associations_limit", float64(s.Totals.MaxAssociations))
	counter("device_packets_total", float64(s.Totals.Read.Packets), "read")
	counter("device_packets_total", float64(s.Totals.Written.Packets), "written")
	counter("device_bytes_total", float64(s.Totals.Read.Bytes), "read")
	counter("device_bytes_total", float64(s.Totals.Written.Bytes), "written")
	counter("packets_passed_total", float64(s.Totals.Passed))
	for _, d := range s.Drops {
		counter("packets_dropped_total", float64(d.Packets), d.Reason.String())
	}
	counter("resets_total", float64(s.Totals.Resets))
	counter("pings_answered_total", float64(s.Totals.Pings))
	counter("icmp_errors_translated_total", float64(s.Totals.ICMPErrors))
	counter("flow_records_total", float64(s.Flows.Reported), "reported")
	counter("flow_records_total", float64(s.Flows.Lost), "lost")
	counter("flow_records_total", float64(s.Flows.Failed), "failed")
	for _, v := range s.Services {
		gauge("service_usable_nodes", float64(v.Usable), v.Name)
		flow("service", v.Traffic, v.Name)
		counter("service_sessions_refused_total", float64(v.Traffic.Refused), v.Name)
	}
	for _, f := range s.Farms {
		for _, n := range f.Nodes {
			gauge("node_up", truth(n.Up), f.Name, n.Name)
			for a := steering.Available; a <= steering.AtLimit; a++ {
				gauge("node_state", truth(n.State == a), f.Name, n.Name, a.String())
			}
			gauge("node_weight", float64(n.Weight), f.Name, n.Name)
			gauge("node_share_ratio", n.Share, f.Name, n.Name)
			gauge("node_pressure_level", float64(n.Pressure), f.Name, n.Name)
			gauge("node_sessions", float64(n.Sessions), f.Name, n.Name)
			gauge("node_response_seconds", n.Response, f.Name, n.Name)
			counter("node_checks_total", float64(n.Health.Probes), f.Name, n.Name)
			counter("node_check_failures_total", float64(n.Health.Failures), f.Name, n.Name)
			flow("node", n.Traffic, f.Name, n.Name)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
