package config

import (
	"fmt"
	"strconv"
)

// countEndpoints is the value of --count-connections that counts connections to endpoints, too.
const countEndpoints = "endpoints"

// counting is the flag --count-connections.
type counting Options

// String implements pflag.Value.
func (c *counting) String() string {
	if c.CountEndpoints {
		return countEndpoints
	}
	return strconv.FormatBool(c.CountConnections)
}

// Set implements pflag.Value.
func (c *counting) Set(text string) error {
	if c.CountEndpoints = text == countEndpoints; c.CountEndpoints {
		c.CountConnections = true
		return nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("must be true, false or %s", countEndpoints)
	}
	c.CountConnections = on
	return nil
}

// Type implements pflag.Value.
func (c *counting) Type() string { return "string" }
