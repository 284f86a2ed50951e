package dataplane

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/flowexport"
)

// TestFlowsOfOneService: flows are exported rule by rule, which may change while they go on. A record says who talked with whom, by which node and rule, and how much.
func TestFlowsOfOneService(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, version := range []flowexport.Version{flowexport.IPFIX, flowexport.NetFlow9} {
			t.Run(version.String(), func(t *testing.T) {
				p := newPlane(t, fam)
				tcps, udps := *p.svc, *p.svc
				tcps.Name, udps.Name = "connections", "datagrams"
				apply := func(connections, datagrams bool) {
					t.Helper()
					a, b := tcps, udps
					a.ExportFlows, b.ExportFlows = connections, datagrams
					require.NoError(t, p.Apply(table(t, rule("c", fam.vip.String()+" tcp/80", &a), rule("d", fam.vip.String()+" udp/80", &b))))
				}
				apply(true, false)
				var c collector
				require.NoError(t, p.SetFlowExport(&FlowExport{Exporter: exporter(t, &c, version), Active: time.Minute, Inactive: 15 * time.Second}))
				client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
				node := p.open(client)
				_, out := p.send(udp(ap(fam.client2, 40001), vip, "ask"))
				other, _ := parseFlow(out)
				p.StepFlows(p.now)
				p.now = p.now.Add(20 * time.Second) // nothing for longer than Inactive
				p.StepFlows(p.now)
				require.EqualValues(t, 2, p.FlowStats().Reported, "both directions of the connection")
				rows := func() (all []map[string]string) {
					t.Helper()
					s, d, nat := "cflow.srcaddr", "cflow.dstaddr", "cflow.post_natdestination_ipv4_address"
					if fam.client.Is6() {
						s, d, nat = "cflow.srcaddrv6", "cflow.dstaddrv6", "cflow.post_nat_destination_ipv6_address"
					}
					fields := []string{s, d, "cflow.srcport", "cflow.dstport", "cflow.protocol", nat, "cflow.post_naptdestination_transport_port", "cflow.appl_name", "cflow.octets", "cflow.packets", "cflow.flow_end_reason"}
					names := []string{"src", "dst", "sport", "dport", "proto", "node", "nport", "rule", "octets", "packets", "why"}
					for _, m := range c.dissect(t, map[flowexport.Version]uint16{flowexport.IPFIX: 4739, flowexport.NetFlow9: 2055}[version], fields...) {
						for i := range splitComma(m[0]) {
							r := map[string]string{}
							for k := range fields {
								if v := splitComma(m[k]); i < len(v) {
									r[names[k]] = v[i]
								}
							}
							all = append(all, r)
						}
					}
					return all
				}
				check := func(r map[string]string) {
					t.Helper()
					if r["src"] != fam.client.String() {
						require.Equal(t, []string{node.Addr().String(), fam.client.String(), "8080", "40000", "1"}, []string{r["src"], r["dst"], r["sport"], r["dport"], r["packets"]}, "%v", r)
						return
					}
					require.Equal(t, []string{fam.vip.String(), "40000", "80", "6", node.Addr().String(), "8080", "connections", "2", "1"},
						[]string{r["dst"], r["sport"], r["dport"], r["proto"], r["node"], r["nport"], r["rule"], r["packets"], r["why"]}, "%v", r)
					require.Equal(t, fmt.Sprint(len(tcp(client, vip, "S", 1, 0, ""))+len(tcp(client, vip, "A", 1, 1, ""))), r["octets"])
				}
				// The other rule's, from now on: with what its session has had since the beginning.
				apply(false, true)
				p.now = p.now.Add(5 * time.Second) // sessions are looked at every few seconds
				p.forwarded(tcp(client, vip, "A", 101, 501, "not told"), client, node)
				p.forwarded(udp(other.Dst, ap(fam.client2, 40001), "answer"), vip, ap(fam.client2, 40001))
				p.StepFlows(p.now)
				p.now = p.now.Add(20 * time.Second)
				p.StepFlows(p.now)
				require.EqualValues(t, 4, p.FlowStats().Reported)
				got := rows()
				require.Len(t, got, 4, "%v", got)
				check(got[0])
				check(got[1])
				for _, r := range got[2:] {
					require.Equal(t, []string{"17", "datagrams", "1"}, []string{r["proto"], r["rule"], r["packets"]}, "%v", r)
				}
			})
		}
	})
}
