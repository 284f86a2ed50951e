package path

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/lbprim/lbprim/steering"
)

// A ChannelID is the encapsulation key of a channel, the same on every member. It is
// never 0.
type ChannelID uint32

// A Channel ties the gateway of an uplink to a balancer interface on the gateway's
// subnet. A node sends packets to the channel by encapsulating them to Addr with the key
// ID, see [AppendHeader].
type Channel struct {
	ID        ChannelID
	Uplink    string     // its name
	Gateway   netip.Addr // of the uplink
	Balancer  string     // its name
	Interface string     // its name
	Addr      netip.Addr // of the interface
}

// Channels derives the channels from the uplinks of the local site and the interfaces of
// all balancers, in order of uplink, balancer and interface.
func (c *Config) Channels() ([]Channel, error) { return c.channels() }

func (c *Config) channels() ([]Channel, error) {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, &steering.FieldError{Field: field, Value: value, Want: want})
	}
	var out []Channel
	for i := range c.Sites {
		s := &c.Sites[i]
		if s.Name != c.Local {
			continue
		}
		for j := range s.Uplinks {
			u := &s.Uplinks[j]
			field := fmt.Sprintf("Sites[%d] %q.Uplinks[%d] %q", i, s.Name, j, u.Name)
			found := len(out)
			known := map[string]bool{}
			for b := range c.Balancers {
				for _, x := range c.Balancers[b].Interfaces {
					named := slices.Contains(u.Interfaces, x.Name)
					if len(u.Interfaces) > 0 && !named {
						continue
					}
					known[x.Name] = true
					switch adjacent := x.Prefix.IsValid() && x.Prefix.Contains(u.Gateway.Unmap()); {
					case adjacent && x.Prefix.Addr() == u.Gateway.Unmap():
						bad(field+".Gateway", u.Gateway, "an address other than that of interface "+x.Name+" of "+c.Balancers[b].Name)
					case adjacent:
						out = append(out, Channel{
							Uplink: u.Name, Gateway: u.Gateway.Unmap(), Balancer: c.Balancers[b].Name, Interface: x.Name, Addr: x.Prefix.Addr(),
						})
					case named:
						bad(field+".Gateway", u.Gateway, fmt.Sprintf("an address on the subnet of interface %s of %s, %s",
							x.Name, c.Balancers[b].Name, x.Prefix.Masked()))
					}
				}
			}
			for _, name := range u.Interfaces {
				if !known[name] {
					bad(field+".Interfaces", fmt.Sprintf("%q", name), "the name of a balancer's interface")
				}
			}
			if len(out) == found && len(u.Interfaces) == 0 {
				bad(field+".Gateway", u.Gateway, "an address on the subnet of an interface of a balancer")
			}
		}
	}
	slices.SortFunc(out, func(a, b Channel) int {
		return cmp.Or(cmp.Compare(a.Uplink, b.Uplink), cmp.Compare(a.Balancer, b.Balancer), cmp.Compare(a.Interface, b.Interface))
	})
	// Keys are hashes, so that adding a channel leaves those of the others alone.
	used := map[ChannelID]bool{0: true}
	for i := range out {
		h := fnv.New32a()
		fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s", out[i].Uplink, out[i].Gateway, out[i].Balancer, out[i].Interface)
		id := ChannelID(h.Sum32())
		for used[id] {
			id++
		}
		used[id] = true
		out[i].ID = id
	}
	return out, errors.Join(errs...)
}
