"""Cost models: specification in, milliseconds out; numpy only, so that planning processes start light."""
