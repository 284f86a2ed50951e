package afpacket

import "fmt"

// A Conflict is a setting of this host that would make the kernel handle the device's packets too,
// or hide them from it. [Preflight] reports them.
type Conflict struct {
	Interface string // "all" if it is of the host
	What      string // what is wrong
	Fix       string // the command that mends it
}

func (c *Conflict) Error() string {
	return fmt.Sprintf("afpacket: interface %q: %s; fix: %s", c.Interface, c.What, c.Fix)
}
