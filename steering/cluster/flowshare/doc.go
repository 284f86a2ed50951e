// Package flowshare lets several balancers know one another's flows. It is the layer of
// [steering/cluster] above membership and below nothing but a transport: it opens no
// socket, starts no goroutine but those of [Layer.Run], and reads no clock but the one it
// is handed, so that it runs as it is over TLS streams, in a test and in a simulation of
// a thousand balancers.
//
// # Model
//
// A balancer that gave a flow to a node announces it and is the origin of its entry from
// then on: nobody else takes the entry back. In a small cluster every member holds every
// entry. Beyond [Config.Threshold] members an entry lives with its origin and with
// [Config.Holders] members, which rendezvous hashing of the flow chooses; the others ask
// those on a miss, and hear within [Config.AskTimeout] or go without.
//
// Entries carry a version from a logical clock. The higher version wins everywhere, so
// that the order in which messages arrive, or arrive twice, changes nothing. An entry taken
// back leaves a tombstone behind for a while.
//
// # Repair
//
// What a member should have and another one has is compared, pair by pair: both sum up the
// entries they should share in groups, and exchange the groups that differ. This happens
// when a stream was lost, when a queue had no more room, when a member has joined, and
// now and then. Thus a queue may be short: what does not fit is found by the
// next comparison. A comparison waits until both sides see the same members.
//
// # When a member goes
//
// Entries of an origin that is gone stay for [Config.Orphans]. Who forwards one of its
// flows from now on announces it and is the new origin; entries with the node [Itself] end at once. Where an entry had a holder that is
// gone, a remaining one, or the origin, tells the next in the order of the rendezvous.
// A member that comes back under its name has another epoch: it does not answer for
// what it announced in its former life, and is told all of it like anybody who joins.
//
// # Concurrency
//
// A [Layer] is safe for concurrent use. Announcing and withdrawing append to a queue;
// [Layer.Step] or Run does the work.
//
// [steering/cluster]: https://pkg.go.dev/github.com/lbprim/lbprim/steering/cluster
package flowshare
