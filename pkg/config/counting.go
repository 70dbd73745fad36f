package config

import (
	"fmt"
	"strconv"
)

// countZones is the value of --count-connections that also counts connections by zone.
const countZones = "zones"

// counting is the flag --count-connections.
type counting Options

// String implements pflag.Value.
func (c *counting) String() string {
	if c.CountZones {
		return countZones
	}
	return strconv.FormatBool(c.CountConnections)
}

// Set implements pflag.Value.
func (c *counting) Set(text string) error {
	if c.CountZones = text == countZones; c.CountZones {
		c.CountConnections = true
		return nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("must be true, false or %s", countZones)
	}
	c.CountConnections = on
	return nil
}

// Type implements pflag.Value.
func (c *counting) Type() string { return "string" }
