package tun

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Config describes an interface. A nil Config, and every zero field, takes the default. A Config may
// be reused and copied; Open keeps nothing of it.
type Config struct {
	// Name of the interface: at most 15 bytes; %d in it becomes the first free number.
	// Default "lb%d".
	Name string

	// MTU is the largest packet on the wire in bytes, 1280 (the least IPv6 permits) to 65521.
	// Default 1500.
	MTU int

	// Addrs are addresses of this host on the interface. Default none: a balancer needs none, and
	// must not have its virtual addresses here, or the kernel would answer for them.
	Addrs []netip.Prefix

	// Routes are the destinations whose packets come to the device: virtual addresses,
	// as single addresses or networks. Default none.
	Routes []netip.Prefix

	// Divert names the interfaces behind which NAT servers live. What arrives there and is not for
	// this host itself comes to the device, so that answers can be translated
	// back. It takes a routing rule per interface and family, and a routing table whose
	// number is 0x6c620000 plus the device's interface index; Close removes both. Reverse path
	// filtering must be off on these interfaces' namespace ("all") for answers to be accepted.
	// Default none.
	Divert []string

	// Proxies are addresses of this host at which proxies listen that policies send connections to: what they send
	// comes to the device, so that answers can be translated back. It takes a routing rule for each, in the
	// table of Divert. Default none.
	Proxies []netip.Addr

	// QueueLen is how many packets the kernel keeps for the reader; what does not fit is lost. Default 4096:
	// with 1000 the bursts of 200 bulk connections at once lost a tenth of their packets.
	QueueLen int

	// NoOffload has the kernel cut super-packets and complete checksums before the program sees them.
	NoOffload bool

	// Spin is how often an empty device is read again before the reader sleeps, at most: under
	// traffic the device spins that long, idle not at all. Default 200; negative: never.
	Spin int
}

const (
	defaultName     = "lb%d"
	defaultMTU      = 1500
	defaultQueueLen = 4096
	defaultSpin     = 200

	maxName   = 15    // IFNAMSIZ less the terminating zero
	minMTU    = 1280  // RFC 8200, section 5
	maxMTU    = 65521 // the kernel's: 65,535 less a link header of 14
	maxQueues = 256   // the kernel's MAX_TAP_QUEUES
)

// complete returns cfg with the defaults filled in, or every fault of it.
func (cfg *Config) complete(queues int) (Config, error) {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("tun: "+format, args...)) }

	if c.Name == "" {
		c.Name = defaultName
	}
	if len(c.Name) > maxName || strings.ContainsAny(c.Name, "/ \t\n") || c.Name == "." || c.Name == ".." {
		fault("Name %q: an interface name has 1 to %d bytes, no slash and no space", c.Name, maxName)
	}
	if c.MTU == 0 {
		c.MTU = defaultMTU
	}
	if c.MTU < minMTU || c.MTU > maxMTU {
		fault("MTU %d: must be %d to %d", c.MTU, minMTU, maxMTU)
	}
	if c.QueueLen == 0 {
		c.QueueLen = defaultQueueLen
	}
	if c.QueueLen < 0 {
		fault("QueueLen %d: must be positive, or 0 for %d", c.QueueLen, defaultQueueLen)
	}
	if c.Spin == 0 {
		c.Spin = defaultSpin
	}
	c.Spin = max(c.Spin, 0)
	for i, p := range c.Addrs {
		if !p.IsValid() {
			fault("Addrs[%d]: the zero Prefix is no address", i)
		}
	}
	for i, p := range c.Routes {
		if !p.IsValid() {
			fault("Routes[%d]: the zero Prefix is no destination", i)
		}
	}
	for i, name := range c.Divert {
		if name == "" || len(name) > maxName {
			fault("Divert[%d] %q: an interface name has 1 to %d bytes", i, name, maxName)
		}
	}
	for i, a := range c.Proxies {
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
			fault("Proxies[%d] %v: must be an address of this host", i, a)
		}
	}
	if queues < 1 || queues > maxQueues {
		fault("%d queues: must be 1 to %d", queues, maxQueues)
	}
	return c, errors.Join(errs...)
}

// Offload says which work the kernel leaves to whoever finally sends a packet.
type Offload struct {
	Checksum bool // packets may have partial checksums
	TCP      bool // TCP super-packets of both families
	UDP      bool // UDP super-packets of both families (Linux 6.2)
}

// Stats counts what happened to a Device, in packets.
type Stats struct {
	Read, Written uint64 // handed to the program, and taken by the kernel
	// Split is how many of those written were super-packets that the kernel refused (EINVAL) and took as single packets.
	Split uint64
	// Sleeps is how often Read found nothing for long enough to sleep.
	Sleeps uint64

	// Packets lost in Read.
	Oversized uint64 // longer than the caller's buffer
	Short     uint64 // without a complete header

	// Packets lost in Write.
	Again   uint64 // EAGAIN: the kernel's queue is full
	NoBufs  uint64 // ENOBUFS, ENOMEM: the kernel is out of memory
	Invalid uint64 // EINVAL: a virtio-net header or packet the kernel does not accept
	Down    uint64 // EIO: the interface is down
	Other   uint64 // any other error, and writes of less than the packet
}
