package main

import (
	"time"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/steering"
)

// The types of the admin interface, version 1. Their tags describe them in the OpenAPI document.

type statusReply struct {
	Version  string    `json:"version" doc:"Version of the program."`
	PID      int       `json:"pid" doc:"Process."`
	Started  time.Time `json:"started" doc:"When it started."`
	Now      time.Time `json:"now" doc:"When this was written; counters are of this moment."`
	Ready    bool      `json:"ready" doc:"It takes new sessions, and some service has as many usable nodes as it wants."`
	Draining bool      `json:"draining" doc:"The whole balancer takes no new session."`
	Warnings []string  `json:"warnings" doc:"What an operator should look at."`

	Config   configReply    `json:"configuration" doc:"The file in force."`
	Device   deviceReply    `json:"device" doc:"Where packets come from and go to."`
	Totals   totalsReply    `json:"totals" doc:"Counts since the start."`
	Flows    flowsReply     `json:"flows" doc:"Flow records exported since the start."`
	Services []serviceReply `json:"services" doc:"Services, in the order of the file."`
	Farms    []farmReply    `json:"farms" doc:"Farms with their nodes, by name."`
	Elements []elementReply `json:"elements" doc:"What policies are about, by name."`
	Drops    []dropReply    `json:"drops" doc:"Packets dropped, by reason, most first."`
}

type configReply struct {
	File    string    `json:"file" doc:"Path."`
	Loaded  time.Time `json:"loaded" doc:"When it was put in force."`
	Reloads uint64    `json:"reloads" doc:"Successful reloads."`
	Refused uint64    `json:"refused" doc:"Reloads that were refused."`
	Error   string    `json:"error,omitempty" doc:"Why the last reload was refused; the configuration before it is in force."`
}

type deviceReply struct {
	Type       deviceType `json:"type" doc:"Kind of device."`
	Name       string     `json:"name,omitempty" doc:"Name of the TUN interface."`
	Interfaces []string   `json:"interfaces,omitempty" doc:"Interfaces that are read, or diverted."`
	Queues     int        `json:"queues" doc:"Queues, with a worker each."`
}

type countReply struct {
	Packets uint64 `json:"packets" doc:"Packets; a super-packet is one."`
	Bytes   uint64 `json:"bytes" doc:"Octets in them."`
}

type totalsReply struct {
	Read            countReply `json:"read" doc:"From the device."`
	Written         countReply `json:"written" doc:"To the device."`
	Passed          uint64     `json:"passed" doc:"Packets that were no business of the balancer's."`
	Dropped         uint64     `json:"dropped" doc:"Packets dropped, for whatever reason."`
	Sessions        int        `json:"sessions" doc:"Open now."`
	MaxSessions     int        `json:"maxSessions" doc:"Most there may be."`
	Associations    int        `json:"associations" doc:"Clients remembered now."`
	MaxAssociations int        `json:"maxAssociations" doc:"Most there may be."`
	Resets          uint64     `json:"resets" doc:"TCP resets sent for lost sessions."`
	Pings           uint64     `json:"pings" doc:"Echo requests answered."`
	ICMPErrors      uint64     `json:"icmpErrors" doc:"ICMP errors translated."`
	Reselected      uint64     `json:"reselected" doc:"Sessions given to a new node in the middle."`
	Translated      uint64     `json:"translated" doc:"Sessions that got another source port."`
	Clamped         uint64     `json:"clamped" doc:"SYNs whose MSS was lowered."`
}

type flowsReply struct {
	Reported uint64 `json:"reported" doc:"Told to the collector."`
	Lost     uint64 `json:"lost" doc:"Ends of sessions that came too fast to be told."`
	Failed   uint64 `json:"failed" doc:"Records that could not be sent."`
}

type serviceReply struct {
	Name     string            `json:"name" doc:"Name."`
	Match    string            `json:"match" doc:"Packets it is for."`
	Farm     string            `json:"farm" doc:"Farm that serves."`
	Disabled bool              `json:"disabled" doc:"Left out by the file."`
	Usable   int               `json:"usableNodes" doc:"Nodes that may take a new session."`
	Nodes    int               `json:"nodes" doc:"Nodes of the farm."`
	Forward  dataplane.Forward `json:"forward" doc:"How packets reach nodes."`
	Mode     clienttable.Mode  `json:"mode" doc:"How clients are remembered."`
	Traffic  trafficReply      `json:"traffic" doc:"Counts since the start."`
}

type trafficReply struct {
	In       countReply `json:"in" doc:"From clients."`
	Out      countReply `json:"out" doc:"To clients."`
	Sessions uint64     `json:"sessions" doc:"Sessions begun."`
	Refused  uint64     `json:"refused" doc:"Sessions that found no node, or no room."`
}

type farmReply struct {
	Name   string          `json:"name" doc:"Name."`
	Metric steering.Metric `json:"metric" doc:"How a node is chosen."`
	Usable int             `json:"usableNodes" doc:"Nodes that may take a new session."`
	Nodes  []nodeReply     `json:"nodes" doc:"Nodes, in the order of the file."`
}

type nodeReply struct {
	Name     string                `json:"name" doc:"Name within its farm."`
	Address  string                `json:"address" doc:"Address, with its port if it has one."`
	State    steering.Availability `json:"state" doc:"Whether it may take a new session, or what prevents that."`
	Reason   string                `json:"reason" doc:"Why it is in this state, for people."`
	Up       bool                  `json:"up" doc:"Its health."`
	Health   healthReply           `json:"health" doc:"What its check found."`
	Agent    string                `json:"agent,omitempty" doc:"What its agent asks for."`
	Admin    steering.AdminState   `json:"admin" doc:"What the operator wants of it."`
	Asked    bool                  `json:"asked" doc:"That was asked over the admin interface, against the file."`
	Backup   bool                  `json:"backup" doc:"Used only when no other node can be."`
	Weight   int                   `json:"weight" doc:"Configured weight."`
	Share    float64               `json:"share" doc:"Part of new sessions that its weight gives it now, 0 to 1."`
	Got      float64               `json:"got" doc:"Part of the farm's sessions it got since the start, 0 to 1."`
	Warmth   float64               `json:"warmth" doc:"How far its slow start has come, 0 to 1."`
	Pressure steering.Level        `json:"pressure" doc:"How hard it is pressed."`
	Sessions int64                 `json:"sessions" doc:"Open now."`
	Max      int                   `json:"maxSessions" doc:"Most it may have; 0 is no limit."`
	Response float64               `json:"responseSeconds" doc:"Moving average of its response time; 0 if unknown."`
	Traffic  trafficReply          `json:"traffic" doc:"Counts since the start."`
}

type healthReply struct {
	Checked  bool              `json:"checked" doc:"Something decides about it."`
	State    healthcheck.State `json:"state" doc:"What is believed."`
	Since    time.Time         `json:"since,omitzero" doc:"When that began."`
	By       string            `json:"by,omitempty" doc:"What decides."`
	Last     time.Time         `json:"lastProbe,omitzero" doc:"When the node's own check was last made."`
	Latency  float64           `json:"latencySeconds" doc:"Of the last pass of the node's own check."`
	Probes   uint64            `json:"probes" doc:"Results of the node's own check."`
	Failures uint64            `json:"failures" doc:"Of these, failures."`
	Note     string            `json:"note,omitempty" doc:"What the last result said."`
}

type elementReply struct {
	Name   string      `json:"name" doc:"Name."`
	Target string      `json:"target" doc:"What is checked."`
	Health healthReply `json:"health" doc:"What its check found."`
}

type dropReply struct {
	Reason  dataplane.Reason `json:"reason" doc:"Why."`
	Packets uint64           `json:"packets" doc:"How many."`
}

type sessionReply struct {
	Protocol string               `json:"protocol" doc:"Protocol."`
	Client   string               `json:"client" doc:"Client's address and port."`
	VIP      string               `json:"vip" doc:"Virtual address and port."`
	Node     string               `json:"node" doc:"Node's address and port."`
	Local    string               `json:"local,omitempty" doc:"What the node takes for the client, if that is translated."`
	NodeName string               `json:"nodeName" doc:"Node, with its farm."`
	Service  string               `json:"service" doc:"Service."`
	Phase    clienttable.TCPPhase `json:"phase" doc:"Of TCP."`
	In       countReply           `json:"in" doc:"From the client."`
	Out      countReply           `json:"out" doc:"To the client, unless the node answers directly."`
	Begun    time.Time            `json:"begun" doc:"When it began."`
	Last     time.Time            `json:"last" doc:"When it last had a packet, about."`
	Direct   bool                 `json:"direct" doc:"The node answers past the balancer."`
}

type sessionsReply struct {
	Matched  int            `json:"matched" doc:"Sessions that match."`
	Sessions []sessionReply `json:"sessions" doc:"Of these as many as asked for, in no order."`
}

type killReply struct {
	Killed int `json:"killed" doc:"Sessions ended."`
}

type wishRequest struct {
	Admin string `json:"admin" enum:"enabled draining sessions-shutdown disabled file" doc:"enabled, draining, sessions-shutdown or disabled; file: as the file says again."`
}

type drainRequest struct {
	On bool `json:"on" doc:"Whether the balancer takes no new sessions."`
}

type explainReply struct {
	Verdict dataplane.Verdict `json:"verdict" doc:"What would become of the packet."`
	Reason  dataplane.Reason  `json:"reason" doc:"Of a drop."`
	Service string            `json:"service,omitempty" doc:"Service."`
	Node    string            `json:"node,omitempty" doc:"Node, with its farm."`
	Known   bool              `json:"known" doc:"A session was found."`
	Text    string            `json:"text" doc:"The whole explanation, for people."`
	Steps   []stepReply       `json:"steps" doc:"The decisions, in order."`
}

type stepReply struct {
	Stage string `json:"stage" doc:"Stage."`
	Text  string `json:"text" doc:"What happened."`
}

type okReply struct {
	OK   bool     `json:"ok" doc:"All is well."`
	Text []string `json:"text" doc:"More, for people."`
}

type errorReply struct {
	Error string `json:"error" doc:"What is wrong, and what would be right."`
}
