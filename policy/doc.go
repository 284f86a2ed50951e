// Package policy answers one question: which service does this packet belong to?
//
// [Rule] values are plain data: a [Match] that names a virtual IP (VIP), a protocol,
// destination ports and clients, and a value of the caller's. [Compile] turns them
// into an immutable [Table]; a [Resolver] holds the table in force and swaps it
// atomically under running look-ups.
//
// # Order of precedence
//
// The order in which rules are given never matters: the most specific rule that
// contains the packet wins. Dimensions are compared one after the other:
//
//  1. VIP: the longest prefix that has any enabled rule owns the address. There is no
//     fall-back to a shorter one; if none of the owner's rules match, the packet
//     belongs to no service.
//  2. Protocol and port, by tier. [TierPort]: a protocol with a port, narrower port
//     ranges first. [TierProtocol]: a protocol, any port. [TierOther]: any protocol but
//     TCP, UDP, ICMP and ICMPv6. [TierAny]: any protocol, with a port (narrower
//     ranges first), then without.
//  3. Clients: the narrower range that holds the source, then wider, then any client.
//
// A rule whose clients do not hold the source is skipped and the search goes on with
// the next less specific rule, across tiers, unless [Config.StrictTier] is set.
//
// # Refused configurations
//
// Two rules with the same match, or with matches of one rank that overlap without one
// containing the other, would make the answer depend on order. Compile refuses them,
// reports every fault at once, and shows a packet that both rules match. A rule that
// can never win is no fault; [Table.Shadowed] lists it.
//
// # Concurrency
//
// A Table never changes: [Table.With], [Table.Without] and [Table.Replace] return a new
// one that shares what did not change. All methods of Table and Resolver are safe for
// concurrent use. Look-ups take no lock and do not allocate; their cost does not
// depend on the number of rules, other than by what fits in the processor's caches.
//
// # What it does not do
//
// The package knows no servers and no sessions. Whether a session exists already is
// asked before a table is, and which server takes a new one is asked after.
package policy
