// Package path chooses the way packets leave a site: over which uplink, through which
// interface of which balancer, and with which DSCP.
//
// # Model
//
// A [Config] describes the sites with their networks and the uplinks of the local one,
// the balancers of the cluster with their interfaces, and the rules. From uplinks and
// interfaces follow the channels: one for every pair of an uplink's gateway and a
// balancer interface on the gateway's subnet. They are the same on every member that has
// the same configuration. Of the channels of one uplink exactly one is active, drawn at
// random; members need not draw alike.
//
// # Order of precedence
//
// The destination's site is the one with the longest network that contains it. The
// first rule that matches names up to three uplinks; the first of them with a channel
// that is up carries the packet. When none is left the packet is relayed, out of the
// balancer interface that redirected its connection, or dropped where the rule says so.
// A rule may set the DSCP, and may do nothing but ask for flow export. The QoS marking
// table has the same fields to match and is looked at separately; the DSCP of a path
// rule wins over its own. Who only marks packets, and leaves their way to others, asks [Engine.Mark].
//
// While the cluster is not steady, rules that name an application do not match
// pass-through TCP.
//
// # Probing
//
// Channels are probed every 2 s under traffic; without, the interval doubles up to
// 30 minutes. Three losses in a row take a channel down, one answer brings it back and
// its flows with it. The caller sends the probes: [Engine.Due] says which, and
// [Engine.Result] takes the outcome; [Engine.Step] does both in turn, and [Engine.Run]
// keeps doing it.
//
// # Concurrency
//
// An [Engine] is safe for concurrent use; [Engine.Decide] takes no lock.
package path
